"""Tools that are built in, a file each."""

from typing import Final

from ppojob_trainer.tools.built_in import calculator, gsm8k_answer, python, search
from ppojob_trainer.tools.built_in.tool import BuiltIn

TOOLS: Final[dict[str, BuiltIn]] = {
    "calc_gsm8k_reward": gsm8k_answer.TOOL,
    "calculator": calculator.TOOL,
    "python": python.TOOL,
    "search": search.TOOL,
}
"""By the name that a model calls them by; `well_known.BUILT_IN_TOOLS` is held to it by a test."""
