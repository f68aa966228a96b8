"""Row files by format: JSON lines, an array of JSON objects, or parquet."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer import durable
from ppojob_trainer.data.problems import DataProblem

_BATCH_ROWS = 64

Row = Mapping[str, object]
"""Cells by column name, as Python values; ``columns.py`` interprets them."""


class RowFile(ABC):
    """An open file, read once in order, with a few megabytes in memory.

    Attributes:
        unread: columns that are not in the rows.
        adds_nulls: whether every struct of a column has the fields of all of them.
        num_rows: number of rows; of some formats known only after the pass over ``rows``.
    """

    unread: Collection[str] = ()
    adds_nulls = False

    def __init__(self, path: str, num_rows: int = 0) -> None:
        self.path = path
        self.num_rows = num_rows

    @abstractmethod
    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every row in order, or the problem of one that cannot be read."""

    def digest(self) -> str:
        """Return the SHA-256 of the content, in hex; after the pass over ``rows``."""
        return durable.sha256_of(Path(self.path))[1]

    def place(self, number: int) -> str:
        """Return the place of a row, for messages; here ``file[number]``, from 0."""
        return f"{self.path}[{number}]"

    def close(self) -> None:  # noqa: B027  some have nothing to close
        """Close the file."""


class JsonLines(RowFile):
    """A JSON-lines file, in UTF-8 without a byte order mark."""

    def rows(self) -> Iterator[Row | DataProblem]:
        with open(self.path, "rb") as file:
            for line in file:
                place = self.place(self.num_rows)
                self.num_rows += 1
                if line.strip():
                    yield parse_row(place, line, "line")
                else:
                    why = "every line is one row"
                    yield DataProblem(place, "a blank line", why, "no blank lines")

    def place(self, number: int) -> str:
        """Return ``file:line``, from 1."""
        return f"{self.path}:{number + 1}"


class JsonArray(RowFile):
    """A JSON array of objects, in memory."""

    def __init__(self, path: str, items: list[msgspec.Raw]) -> None:
        super().__init__(path, len(items))
        self._items = items

    def rows(self) -> Iterator[Row | DataProblem]:
        for number, item in enumerate(self._items):
            yield parse_row(self.place(number), bytes(item))


def open_json(path: str) -> RowFile | DataProblem:
    """Open a JSON file: an array if it begins as an array of objects, else JSON lines."""
    with open(path, "rb") as file:
        if b"".join(file.read(4_096).split())[:2] not in (b"[{", b"[]"):
            return JsonLines(path)
    try:
        items = msgspec.json.decode(Path(path).read_bytes(), type=list[msgspec.Raw])
    except msgspec.MsgspecError as error:
        allowed = "one array of objects, or one object a line"
        return DataProblem(path, "an array that is not JSON", str(error), allowed)
    return JsonArray(path, items)


def parse_row(place: str, text: bytes, unit: str = "item") -> Row | DataProblem:
    """Parse a row from JSON; `place` and `unit` are for messages."""
    try:
        row = msgspec.json.decode(text)
    except UnicodeDecodeError as error:
        return DataProblem(place, "bytes that are not UTF-8", str(error.reason), "UTF-8")
    except msgspec.MsgspecError as error:
        allowed = "one JSON object a line, numbers finite, no lone surrogates"
        return DataProblem(place, "text that is not JSON", str(error), allowed)
    if isinstance(row, dict):
        return row
    got, why = f"a JSON {type(row).__name__}", f"every {unit} is one row"
    return DataProblem(place, got, why, 'an object such as {"prompt": [...], "data_source": "..."}')


class ParquetRows(RowFile):
    """A parquet file of which some columns are read, as far as they are present."""

    adds_nulls = True

    def __init__(self, path: str, file: pq.ParquetFile, columns: tuple[str, ...]) -> None:
        super().__init__(path, file.metadata.num_rows)
        self._file = file
        present = set(file.schema_arrow.names)
        self.columns = [name for name in columns if name in present]
        self.unread = present.difference(columns)

    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every row in order; a damaged row group is one problem and ends the file."""
        for group in range(self._file.num_row_groups):
            try:
                batches = self._file.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=self.columns, use_threads=False
                )
                for batch in batches:
                    yield from batch.to_pylist()
            # ValueError: text that is not UTF-8, or a time that Python lacks.
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                yield DataProblem(
                    f"{self.path}:row group {group}",
                    "data that cannot be decoded",
                    " ".join(str(error).split())[:200],
                    "the file as it was written, text in UTF-8, times in microseconds",
                )
                return

    def place(self, number: int) -> str:
        """Return ``file:row``, from 0."""
        return f"{self.path}:{number}"

    def close(self) -> None:
        self._file.close()
