"""What to do about each reason: read from reasons.md beside this file, as people read it too."""

import re
from functools import cache
from importlib import resources
from typing import Final

UNKNOWN: Final = "reasons.md, of the version of the operator"

_HEADING: Final = re.compile(r"^## (?=(\w+))", re.MULTILINE)
_ROW: Final = re.compile(r"^\| (`[^|]+) \| (?:[^|]+ \| )?(.+) \|$", re.MULTILINE)


@cache
def tables() -> dict[str, dict[str, str]]:
    """What to do about each word, by the first word of the heading that it stands under."""
    page = resources.files("ppojob_cli.cluster").joinpath("reasons.md").read_text("utf-8")
    _, *parts = _HEADING.split(page)
    return {
        heading: {
            word: what_to_do
            for words, what_to_do in _ROW.findall(section)
            for word in re.findall(r"`(\w+)`", words)
        }
        for heading, section in zip(parts[::2], parts[1::2], strict=True)
    }


def remedy(heading: str, reason: str) -> str:
    """What to do about a reason; an operator may be newer than the page.

    Args:
        heading: A condition; `Found` for what is in none; `Ended` for the class of a failure.
        reason: The word.
    """
    # A job may fail by the reason of another condition: one that was never accepted.
    places = (tables().get(heading, {}), *tables().values())
    return next((table[reason] for table in places if reason in table), UNKNOWN)
