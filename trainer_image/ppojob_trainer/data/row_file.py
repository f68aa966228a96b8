"""What the data set asks of a file of rows, whatever its format."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from ppojob_trainer.data.problems import DataProblem

Row = Mapping[str, object]
"""Cells by column name, as the format's reader gives them; ``columns.py`` says what they mean. A
``DataProblem``, whose place is left out, stands for a cell that has no Python value."""


class RowFile(ABC):
    """One open file, read once from the front, a few megabytes of it in memory at a time.

    Attributes:
        path: as the specification names it.
        num_rows: number of rows; of some formats only after the pass over ``rows``.
    """

    def __init__(self, path: str, num_rows: int = 0) -> None:
        self.path = path
        self.num_rows = num_rows

    @abstractmethod
    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every row in order, and in place of one that cannot be read why."""

    def digest(self) -> str:
        """SHA-256 in hex of what its rows are made of; after the pass over ``rows``."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def place(self, number: int) -> str:
        """A row as people count those of this format; here ``file[number]``, from 0."""
        return f"{self.path}[{number}]"

    def close(self) -> None:  # noqa: B027  some hold nothing
        """Give back what is held."""
