"""Built-in tools and user simulators, one file each."""

from typing import Final

from ppojob_trainer.tools.built_in import answer_tools, bash, calculator, python, search, zoom
from ppojob_trainer.tools.built_in.tool import BuiltIn, BuiltInUser

TOOLS: Final[dict[str, BuiltIn]] = {
    "bash": bash.TOOL,
    "calc_geo3k_reward": answer_tools.GEO3K,
    "calc_gsm8k_reward": answer_tools.GSM8K,
    "calculator": calculator.TOOL,
    "image_zoom_in_tool": zoom.TOOL,
    "python": python.TOOL,
    "search": search.TOOL,
}
"""Built-in tools by name, as in `well_known.BUILT_IN_TOOLS`."""
USERS: Final[dict[str, BuiltInUser]] = {"gsm8k": answer_tools.USER}
"""Built-in user simulators by name, as in `well_known.BUILT_IN_INTERACTIONS`."""
