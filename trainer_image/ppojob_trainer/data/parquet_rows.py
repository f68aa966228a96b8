"""Parquet, streamed in small batches."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.data.row_file import MAX_CELL_BYTES, BadRow, Row, Undecodable, file_digest

_BATCH_ROWS = 64
_SHOWN_CHARACTERS = 80


class ParquetRows:
    """A parquet file of which only some columns are read.

    Args:
        path: the file, already known to be readable (``file_checks.open_parquet``).
        file: the open parquet file.
        columns: names of the columns to read; absent ones are left out of the rows.
    """

    def __init__(self, path: str, file: pq.ParquetFile, columns: tuple[str, ...]) -> None:
        self._path = path
        self._file = file
        present = set(file.schema_arrow.names)
        self._columns = [name for name in columns if name in present]

    @property
    def path(self) -> str:
        """As the specification names it."""
        return self._path

    @property
    def num_rows(self) -> int:
        """Number of rows, as the footer tells."""
        return int(self._file.metadata.num_rows)

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield every row in order; a damaged row group is one ``BadRow`` and ends the file."""
        number = 0
        for group in range(self._file.num_row_groups):
            try:
                for batch in self._batches(group, self._columns):
                    rows = _python_rows(batch)
                    yield from (
                        rows if batch.nbytes <= MAX_CELL_BYTES else self._bounded(number, rows)
                    )
                    number += batch.num_rows
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield self._damage(group, error)
                return

    def digest(self) -> str:
        """SHA-256 of the file, in hex."""
        return file_digest(self._path)

    def place(self, number: int) -> str:
        """``file:row``, counted from 0."""
        return f"{self._path}:{number}"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def extension_columns(self) -> list[tuple[str, str]]:
        """Columns that ask for an Arrow extension type, and its name; only storage is read."""
        found = []
        for field in self._file.schema_arrow:
            name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode(errors="replace")
            if isinstance(field.type, pa.BaseExtensionType):
                name = field.type.extension_name
            if name:
                found.append((field.name, name))
        return found

    def _batches(self, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
        )
        return batches

    def _bounded(self, first: int, rows: list[Row]) -> Iterator[Row | BadRow]:
        """Rows of a batch that is so large that one of them may be too large."""
        for number, row in enumerate(rows, start=first):
            if len(repr(row)) <= MAX_CELL_BYTES:
                yield row
                continue
            yield BadRow(
                self.place(number),
                f"more than {MAX_CELL_BYTES} bytes",
                "too large for one row",
                f"rows of at most {MAX_CELL_BYTES} bytes",
                DataReason.TOO_LARGE,
            )

    def _damage(self, group: int, error: Exception) -> BadRow:
        """Find the first column that cannot be read."""
        column = ""
        for name in self._columns:
            try:
                for _ in self._batches(group, [name]):
                    pass
            except (pa.ArrowException, OSError):
                column = f":{name}"
                break
        return BadRow(
            f"{self._path}:row group {group}{column}",
            "data that cannot be decoded",
            " ".join(str(error).split())[:200],
            "the file as it was written; rewrite or fetch it again",
            DataReason.DAMAGED_PARQUET,
        )


def _python_rows(batch: pa.RecordBatch) -> list[Row]:
    """Cells as Python values; those that have none are marked."""
    columns: dict[str, list[object]] = {}
    if not batch.schema.names:
        return [{} for _ in range(batch.num_rows)]
    for name in batch.schema.names:
        columns[name] = _python_cells(batch.column(name))
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _python_cells(column: pa.Array) -> list[object]:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_python_cell(cell) for cell in column]


def _python_cell(cell: pa.Scalar) -> object:
    try:
        value: object = cell.as_py()
    except UnicodeDecodeError:
        got, why = "bytes that are not UTF-8", "text is UTF-8"
        return Undecodable(got, why, "UTF-8", DataReason.NOT_UTF8)
    except (ValueError, OverflowError) as error:  # a time to the nanosecond, or of the year 10000
        got, why = str(cell.type)[:_SHOWN_CHARACTERS], str(error).partition(". ")[0]
        return Undecodable(got, why, "the same as text or a number", DataReason.BAD_VALUE)
    return value
