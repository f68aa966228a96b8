"""Built-in tools and user simulators, one file each."""

from typing import Final

from ppojob_trainer.tools.built_in import answer_tools, calculator, gsm8k_user, python, search, zoom
from ppojob_trainer.tools.built_in.tool import BuiltIn, BuiltInUser

TOOLS: Final[dict[str, BuiltIn]] = {
    "calc_geo3k_reward": answer_tools.GEO3K,
    "calc_gsm8k_reward": answer_tools.GSM8K,
    "calculator": calculator.TOOL,
    "image_zoom_in_tool": zoom.TOOL,
    "python": python.TOOL,
    "search": search.TOOL,
}
"""By the name that a model calls them by; `well_known.BUILT_IN_TOOLS` is held to it by a test."""
USERS: Final[dict[str, BuiltInUser]] = {"gsm8k": gsm8k_user.USER}
"""The same of user simulators, by the name that rows select them by
(`well_known.BUILT_IN_INTERACTIONS`).
"""
