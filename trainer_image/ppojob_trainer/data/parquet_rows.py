"""Parquet: streamed in small batches, and read again by row group."""

import bisect
import contextlib
import itertools
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer import durable
from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.data.row_file import MAX_CELL_BYTES, BadRow, Row, Undecodable

_BATCH_ROWS = 64
_CACHED_BYTES = 16 * 1024 * 1024
_CACHED_GROUP_BYTES = 16 * 1024 * 1024
_SPILL_PREFIX = "ppojob-rows-"
_SHOWN_CHARACTERS = 80


class ParquetRows:
    """A parquet file of which only some columns are read.

    A row group that decodes to less than 16 MB is read whole when one of its rows is asked for,
    and the last 16 MB are kept. A larger one (many writers put a whole file into one) is written
    once to an unlinked temporary file in small batches, from which single rows are read.

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
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        self._starts = [0, *itertools.accumulate(sizes)]
        # What the footer says; corrected by what decoding gives, as a dictionary unfolds.
        self._decoded_bytes = [self._told_bytes(group) for group in range(len(sizes))]
        self._tables: OrderedDict[int, pa.Table] = OrderedDict()
        self._spilled: dict[int, _SpilledGroup] = {}

    @property
    def path(self) -> str:
        """As the specification names it."""
        return self._path

    @property
    def num_rows(self) -> int:
        """Number of rows, as the footer tells."""
        return int(self._starts[-1])

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield every row in order; a damaged row group is one ``BadRow`` and ends the file."""
        for group in range(len(self._decoded_bytes)):
            decoded = 0
            try:
                for batch in self._batches(group):
                    decoded += batch.nbytes
                    yield from _python_rows(batch)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield self._damage(group, error)
                return
            self._decoded_bytes[group] = max(decoded, self._decoded_bytes[group])

    def read(self, number: int) -> Row:
        """Read one row through the row-group cache."""
        group = bisect.bisect_right(self._starts, number) - 1
        offset = number - self._starts[group]
        try:
            if self._decoded_bytes[group] > _CACHED_GROUP_BYTES:
                batch = self._spill(group).batch(offset)
            else:
                batch = self._table(group).slice(offset, 1)
        except (pa.ArrowException, OSError) as error:
            raise self._damage(group, error) from None
        (row,) = _python_rows(batch)
        return row

    def place(self, number: int) -> str:
        """``file:row``, counted from 0."""
        return f"{self._path}:{number}"

    def close(self) -> None:
        """Close the file and what was spilled."""
        self._tables.clear()
        for spilled in self._spilled.values():
            spilled.close()
        self._spilled.clear()
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

    def _told_bytes(self, group: int) -> int:
        facts = self._file.metadata.row_group(group)
        chunks = (facts.column(position) for position in range(facts.num_columns))
        return sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if chunk.path_in_schema.partition(".")[0] in self._columns
        )

    def _batches(self, group: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=_BATCH_ROWS,
            row_groups=[group],
            columns=self._columns if columns is None else columns,
            use_threads=False,
        )
        return map(_plain, batches)

    def _table(self, group: int) -> pa.Table:
        if group not in self._tables:
            room = _CACHED_BYTES - self._decoded_bytes[group]
            while sum(self._decoded_bytes[kept] for kept in self._tables) > room:
                self._tables.popitem(last=False)
            self._tables[group] = pa.Table.from_batches(list(self._batches(group)))
        self._tables.move_to_end(group)
        return self._tables[group]

    def _spill(self, group: int) -> "_SpilledGroup":
        if group not in self._spilled:
            self._spilled[group] = _SpilledGroup(self._batches(group))
        return self._spilled[group]

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


class _SpilledGroup:
    """One large row group as uncompressed batches in a temporary file."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._starts = [0]
        with _writing():
            self._file = tempfile.TemporaryFile(prefix=_SPILL_PREFIX)  # noqa: SIM115  close()
        try:
            self._write(batches)
        except BaseException:
            self.close()
            raise
        self._reader = pa.ipc.open_file(self._file)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        first = next(batches)
        with _writing():
            writer = pa.ipc.new_file(self._file, first.schema)
        for batch in itertools.chain([first], batches):
            with _writing():
                writer.write_batch(batch)
            self._starts.append(self._starts[-1] + batch.num_rows)
        with _writing():
            writer.close()
            self._file.seek(0)

    def batch(self, offset: int) -> pa.RecordBatch:
        """Read the row at ``offset``, as a batch of one."""
        number = bisect.bisect_right(self._starts, offset) - 1
        return self._reader.get_batch(number).slice(offset - self._starts[number], 1)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk refused is wanted no more
            self._file.close()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Tell a full disk from a damaged file, which is read meanwhile."""
    try:
        yield
    except OSError as error:
        durable.raise_storage_error(Path(tempfile.gettempdir()) / _SPILL_PREFIX, "write", error)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as its values: dictionaries unfolded, extension types as what they are stored as.

    A slice of a dictionary column drags the whole dictionary with it, and in a file of batches all
    must have the same one.
    """
    columns = {
        name: _plain_column(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(columns) if columns else batch


def _plain_column(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    plain = _plain_type(column.type)
    if plain != column.type:
        column = column.cast(plain)
    # A dictionary of one long text, named by every row, is small until it is unfolded.
    if column.nbytes > len(column) * MAX_CELL_BYTES:
        raise pa.ArrowInvalid(f"cells of more than {MAX_CELL_BYTES} bytes")
    return column


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, however deep they are."""

    def plain(field: pa.Field) -> pa.Field:
        return field.with_type(_plain_type(field.type))

    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([plain(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_field), plain(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(plain(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_field))
    return kind


def _python_rows(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    """Cells as Python values; those that have none are marked."""
    columns: dict[str, list[object]] = {}
    if not batch.schema.names:
        return [{} for _ in range(batch.num_rows)]
    for name in batch.schema.names:
        column = batch.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        columns[name] = _python_cells(column)
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _python_cells(column: pa.Array) -> list[object]:
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
