"""Parquet, streamed in small batches."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer.data.problems import DataProblem, DataReason
from ppojob_trainer.data.row_file import Row, RowFile

_BATCH_ROWS = 64
_SHOWN_CHARACTERS = 80


class ParquetRows(RowFile):
    """A parquet file of which only some columns are read.

    Args:
        path: the file, already known to be readable (``file_checks.open_parquet``).
        file: the open parquet file.
        columns: names of the columns to read; absent ones are left out of the rows.
    """

    def __init__(self, path: str, file: pq.ParquetFile, columns: tuple[str, ...]) -> None:
        super().__init__(path, file.metadata.num_rows)
        self._file = file
        present = set(file.schema_arrow.names)
        self._columns = [name for name in columns if name in present]

    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every row in order; a damaged row group is one problem and ends the file."""
        for group in range(self._file.num_row_groups):
            try:
                for batch in self._batches(group, self._columns):
                    yield from _python_rows(batch)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield self._damage(group, error)
                return

    def place(self, number: int) -> str:
        """``file:row``, counted from 0."""
        return f"{self.path}:{number}"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _batches(self, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
        )
        return batches

    def _damage(self, group: int, error: Exception) -> DataProblem:
        """Find the first column that cannot be read."""
        column = ""
        for name in self._columns:
            try:
                for _ in self._batches(group, [name]):
                    pass
            except (pa.ArrowException, OSError):
                column = f":{name}"
                break
        return DataProblem(
            f"{self.path}:row group {group}{column}",
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
        return DataProblem("", got, why, "UTF-8", DataReason.NOT_UTF8)
    except (ValueError, OverflowError) as error:  # a time to the nanosecond, or of the year 10000
        got, why = str(cell.type)[:_SHOWN_CHARACTERS], str(error).partition(". ")[0]
        allowed = "the same as text or a number"
        return DataProblem("", got, why, allowed, DataReason.BAD_VALUE)
    return value
