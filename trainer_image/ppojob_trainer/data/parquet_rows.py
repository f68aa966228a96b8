"""Parquet, streamed in small batches."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer.data.problems import DataProblem
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
                batches = self._file.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=self._columns, use_threads=False
                )
                for batch in batches:
                    yield from _python_rows(batch)
            except (pa.ArrowException, OSError) as error:
                yield DataProblem(
                    f"{self.path}:row group {group}",
                    "data that cannot be decoded",
                    " ".join(str(error).split())[:200],
                    "the file as it was written; rewrite or fetch it again",
                )
                return

    def place(self, number: int) -> str:
        """``file:row``, counted from 0."""
        return f"{self.path}:{number}"

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _python_rows(batch: pa.RecordBatch) -> list[Row]:
    """Rows as Python values; cells that have none are marked."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        columns = {
            name: [_python_cell(cell) for cell in batch.column(name)] for name in batch.schema.names
        }
        cells = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in cells]


def _python_cell(cell: pa.Scalar) -> object:
    try:
        value: object = cell.as_py()
    except UnicodeDecodeError:
        got, why = "bytes that are not UTF-8", "text is UTF-8"
        return DataProblem("", got, why, "UTF-8")
    except (ValueError, OverflowError) as error:  # a time to the nanosecond, or of the year 10000
        got, why = str(cell.type)[:_SHOWN_CHARACTERS], str(error).partition(". ")[0]
        allowed = "the same as text or a number"
        return DataProblem("", got, why, allowed)
    return value
