"""What the data set asks of a file of rows, whatever its format."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.errors import PPOJobError

MAX_CELL_BYTES = 16 * 1024 * 1024
"""One row of text beyond this is a mistake or an attack."""

Row = Mapping[str, object]
"""Cells by column name, as the format's reader gives them; ``columns.py`` says what they mean."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands in a row for a cell that has no Python value.

    Attributes:
        got: what is there.
        why: what is wrong with it.
        allowed: what to write instead.
        reason_code: stable word.
    """

    got: str
    why: str
    allowed: str
    reason_code: DataReason


class BadRow(PPOJobError):  # noqa: N818  the row is bad
    """A row, or all from here on, cannot be read.

    Attributes:
        place: ``file:row`` or a larger part of the file.
        got: what is there.
        why: what is wrong with it.
        allowed: what to write instead.
        reason_code: stable word.
    """

    def __init__(
        self,
        place: str,
        got: str,
        why: str,
        allowed: str,
        reason_code: DataReason = DataReason.BAD_LINE,
    ) -> None:
        self.reason_code = reason_code
        self.place = place
        self.got = got
        self.why = why
        self.allowed = allowed
        super().__init__(f"{place}: got {got}: {why}; {allowed}")


class RowFile(Protocol):
    """One open file, read once from the front, a few megabytes of it in memory at a time."""

    @property
    def path(self) -> str:
        """As the specification names it."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of rows; of JSON lines only after the pass over ``rows``."""
        ...

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield every row in order, with what cannot be read in its place."""
        ...

    def digest(self) -> str:
        """SHA-256 in hex of what its rows are made of; after the pass over ``rows``."""
        ...

    def place(self, number: int) -> str:
        """``file:row`` as people count rows of this format."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def file_digest(path: str) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
