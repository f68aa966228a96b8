"""File checks: resolve the files that a job names, and check each before its rows are read."""

import glob
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_api.v1alpha1.data import DataFile, DataSpec
from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_trainer.data.columns import allowed_columns, read_columns, required_columns
from ppojob_trainer.data.custom_rows import CustomRows
from ppojob_trainer.data.formats import ParquetRows, RowFile, open_json
from ppojob_trainer.data.problems import DataProblem

_LISTED_COLUMNS = 20
_JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
_PROGRAM_ENDING = ".py"
_ENDINGS = {
    "auto": (".parquet", *_JSON_ENDINGS),
    "parquet": (".parquet",),
    "jsonl": _JSON_ENDINGS,
    "python": (_PROGRAM_ENDING,),
}
_WILDCARDS = "*?["
_WANTED = "a parquet or JSON-lines file, or a folder that ends in /"


def _files_of(path: str, form: str) -> list[str] | DataProblem:
    """Return the files of a path, sorted by name.

    It is a file, a pattern such as ``data/train-*.parquet``, or a folder that ends in ``/``, whose
    files are selected by the suffixes of the format.
    """
    if path.endswith("/") and os.path.isdir(path):
        try:
            found = [
                entry.path
                for entry in os.scandir(path)
                if entry.is_file()
                and not entry.name.startswith(".")
                and entry.name.lower().endswith(_ENDINGS[form])
            ]
        except OSError as error:
            return _unreadable(path, _reason(error))
        got = "no data file in this folder"
        allowed = f"a folder with files that end in {', '.join(_ENDINGS[form])}"
    elif any(sign in path for sign in _WILDCARDS) and not os.path.exists(path):
        found = [name for name in glob.glob(path) if os.path.isfile(name)]
        got, allowed = "no matching file", "a pattern of existing files, such as data/*.parquet"
    else:
        return [path]
    return sorted(found) or _unreadable(path, got, allowed)


def open_files(
    file: DataFile, spec: DataSpec, *, given: GivenType | None = None, media: Collection[str] = ()
) -> Iterator[RowFile | DataProblem]:
    """Yield each open file of an entry of the job, or its problem."""
    paths = _files_of(file.path, file.format)
    if isinstance(paths, DataProblem):
        yield paths
        return
    columns = read_columns(spec, given=given, media=media)
    required = required_columns(spec, given=given)
    for path in paths:
        yield open_row_file(path, columns, required, file, spec)


def open_row_file(
    path: str,
    read: tuple[str, ...] | None = None,
    required: tuple[str, ...] = (),
    file: DataFile | None = None,
    spec: DataSpec | None = None,
) -> RowFile | DataProblem:
    """Open a data file, or return its problem.

    `read` are the columns to read, None for all, and `required` those that it must have. `file` is
    the entry of the job; None for another file, which is never executed. `spec` is for messages.
    """
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        return _unreadable(path, _reason(error))
    form, name = file.format if file else "auto", path.lower()
    if file and (form == "python" or (form == "auto" and name.endswith(_PROGRAM_ENDING))):
        return CustomRows.open(path, file.function or "rows", file.arguments or {})
    if form == "jsonl" or (form == "auto" and name.endswith(_JSON_ENDINGS)):
        return open_json(path)
    try:
        opened = pq.ParquetFile(
            path,
            buffer_size=1 << 20,
            pre_buffer=False,
            page_checksum_verification=True,
            # An extension type could run code: only the storage type is read.
            arrow_extensions_enabled=False,
        )
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        allowed = "a complete parquet file, not encrypted"
        allowed += ", or format: jsonl" if file else f", or one in {', '.join(_JSON_ENDINGS)}"
        return DataProblem(path, "no readable parquet file", reason, allowed)
    found = opened.schema_arrow.names
    columns = tuple(found) if read is None else read
    missing = next((name for name in required if name not in found), None)
    if missing is None:
        return ParquetRows(path, opened, columns)
    opened.close()
    where, why = f"{path}:{missing}", f"the columns are {listed_columns(found)}"
    return DataProblem(where, "no such column", why, allowed_columns(spec, missing))


def listed_columns(names: Sequence[str]) -> str:
    """List the first columns of a file, for messages."""
    more = ", ..." if len(names) > _LISTED_COLUMNS else ""
    return ", ".join(names[:_LISTED_COLUMNS]) + more or "none"


def _unreadable(path: str, got: str, allowed: str = _WANTED) -> DataProblem:
    why = f"looked for as uid {os.getuid()} in {Path.cwd()}"
    return DataProblem(path, got, why, allowed)


def _reason(error: OSError) -> str:
    return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
