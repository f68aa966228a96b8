"""What a model is told of a call that failed: every text there is."""

from typing import Final

from ppojob_api.problem import printable

_NAME_CHARACTERS = 64
_WHY_CHARACTERS = 600

TEXTS: Final = {
    "unknown": "Error: there is no tool {name}. Tools: {why}.",
    "arguments": "Error: wrong arguments for {name}: {why}.",
    "raised": "Error: {name} failed: {why}",
    "timeout": "Error: {name} gave no answer in {why} s.",
    "died": "Error: {name} ended without an answer.",
}
"""By the word for the failure, as answers carry it."""


def told(failure: str, name: str, why: str = "") -> str:
    """The text for the model; what it quotes is cut, and in one line."""
    return TEXTS[failure].format(
        name=printable(name, _NAME_CHARACTERS), why=printable(why, _WHY_CHARACTERS)
    )
