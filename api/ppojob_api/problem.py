"""A problem of an input, in the form that all commands and the operator use."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ReasonCode(StrEnum):
    """Stable words for programs; messages may change, these do not."""

    UNREADABLE = "Unreadable"
    NOT_UTF8 = "NotUtf8"
    TOO_LARGE = "TooLarge"
    EMPTY = "Empty"
    SEVERAL_DOCUMENTS = "SeveralDocuments"
    FORBIDDEN_CHARACTER = "ForbiddenCharacter"
    MALFORMED_YAML = "MalformedYaml"
    DUPLICATE_KEY = "DuplicateKey"
    AMBIGUOUS_SCALAR = "AmbiguousScalar"
    UNSUPPORTED_YAML = "UnsupportedYaml"
    UNKNOWN_FIELD = "UnknownField"
    REQUIRED = "Required"
    WRONG_TYPE = "WrongType"
    OUT_OF_RANGE = "OutOfRange"
    NOT_ONE_OF = "NotOneOf"
    BAD_FORM = "BadForm"
    FORBIDDEN = "Forbidden"
    DUPLICATE = "Duplicate"
    CONFLICT = "Conflict"
    NO_EFFECT = "NoEffect"
    NOT_IN_THIS_VERSION = "NotInThisVersion"


SHOWN_CHARACTERS: Final = 80

# Shown as the value of an absent field.
ABSENT: Final = "nothing"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem."""

    where: str  # Path in the spec (`spec.algorithm.type`) or place in a file (`job.yaml:3:7`)
    got: str  # What is there, as `shown` renders it
    why: str
    allowed: str
    # Stable word for programs: a `ReasonCode`, or that of another kind of input.
    reason_code: StrEnum

    def __str__(self) -> str:
        """The one line that people read."""
        return printable(f"{self.where}: got {self.got}: {self.why}; {self.allowed}")


def shown(value: object) -> str:
    """A value as one short line of JSON, cut at 80 characters.

    Control and bidirectional characters are escaped, so a value cannot rewrite the terminal.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:
        return f"an integer of {value.bit_length()} bits"
    text = json.dumps(value, default=repr)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def counted(amount: int, noun: str, plural: str = "") -> str:
    """`1 step`, `2 steps`."""
    return f"{amount} {noun if amount == 1 else plural or noun + 's'}"


def printable(text: str, limit: int | None = None) -> str:
    """Text for a message or a log: truncated, with unprintable characters escaped."""
    if limit is not None and len(text) > limit:
        text = f"{text[: limit - 3]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
