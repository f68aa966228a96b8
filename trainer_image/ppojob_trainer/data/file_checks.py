"""Which files a job names, and what is wrong with one before its first row is read."""

import glob
import os
import stat
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_api.v1alpha1.training import DataFile
from ppojob_trainer.data.columns import COLUMNS_ALLOWED, ColumnNames
from ppojob_trainer.data.json_rows import JsonArray, JsonLines, begins_array
from ppojob_trainer.data.made_rows import MadeRows
from ppojob_trainer.data.parquet_rows import ParquetRows
from ppojob_trainer.data.problems import DataProblem, DataReason
from ppojob_trainer.data.row_file import RowFile

_LISTED_COLUMNS = 20
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
_PROGRAM_ENDING = ".py"
_ENDINGS = {
    "auto": (".parquet", *_JSON_ENDINGS),
    "parquet": (".parquet",),
    "jsonl": _JSON_ENDINGS,
    "python": (_PROGRAM_ENDING,),
}
_WILDCARDS = "*?["
_REWRITE = "a parquet file; write it again"

Format = Literal["auto", "parquet", "jsonl", "python"]


def files_of(path: str, form: Format) -> list[str] | DataProblem:
    """The files that a path of the job stands for, in the order of their names.

    Args:
        path: a file, a folder that ends in ``/``, or a pattern: ``data/train-*.parquet``.
        form: of the files; of a folder those are taken whose ending fits it.
    """
    if path.endswith("/") and os.path.isdir(path):
        try:
            found = [entry.path for entry in os.scandir(path) if _is_data(entry, _ENDINGS[form])]
        except PermissionError:
            return _no_permission(path, "it may not be listed")
        wanted = f"a folder with files that end in {', '.join(_ENDINGS[form])}"
        got = "no data file in this folder"
    elif any(sign in path for sign in _WILDCARDS) and not os.path.exists(path):
        found = [name for name in glob.glob(path) if os.path.isfile(name)]
        got, wanted = "no file of this pattern", "a pattern that files fit, such as data/*.parquet"
    else:
        return [path]
    if found:
        return sorted(found)
    why = f"looked for as uid {os.getuid()} in {Path.cwd()}"
    return DataProblem(path, got, why, wanted, DataReason.FILE_MISSING)


def _is_data(entry: os.DirEntry[str], endings: tuple[str, ...]) -> bool:
    is_hidden = entry.name.startswith(".")
    return entry.is_file() and not is_hidden and entry.name.lower().endswith(endings)


def open_row_file(
    path: str, names: ColumnNames | None = None, file: DataFile | None = None
) -> RowFile | DataProblem:
    """Open a data file, or say why it cannot be used.

    Args:
        path: the file.
        names: the columns that will be asked for; None for all that there are.
        file: what the job says of it, and of others of the same pattern or folder; format "auto"
            goes by the ending, parquet where that tells nothing. None where no job names it: such
            a file is not run.
    """
    problem = _path_problem(path)
    if problem is not None:
        return problem
    form, name = file.format if file else "auto", path.lower()
    if file and (form == "python" or (form == "auto" and name.endswith(_PROGRAM_ENDING))):
        return MadeRows.open(path, file.function or "rows", file.arguments or {})
    if form == "jsonl" or (form == "auto" and name.endswith(_JSON_ENDINGS)):
        return JsonArray.read(path) if begins_array(path) else JsonLines(path)
    opened = _open_parquet(path)
    if isinstance(opened, DataProblem):
        return opened
    read, required = (names.read, names.required) if names else (None, ())
    columns = tuple(opened.schema_arrow.names) if read is None else read
    problem = _parquet_problem(path, opened, columns) or _missing(path, opened, required)
    if problem is not None:
        opened.close()
        return problem
    return ParquetRows(path, opened, columns)


def _path_problem(path: str) -> DataProblem | None:
    try:
        facts = os.stat(path)
    except PermissionError:
        return _no_permission(path, "a folder above it may not be entered")
    except OSError as error:
        return DataProblem(
            path,
            "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror),
            f"looked for as uid {os.getuid()} in {Path.cwd()}",
            "a parquet or JSON-lines file, or a folder that ends in /",
            DataReason.FILE_MISSING,
        )
    if not stat.S_ISREG(facts.st_mode):
        kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "no regular file"
        return DataProblem(
            path,
            kind,
            "rows are read from files",
            "a file, or / at the end for all files of a folder",
            DataReason.NOT_A_FILE,
        )
    if not os.access(path, os.R_OK):
        return _no_permission(
            path, f"mode {stat.filemode(facts.st_mode)}, owner {facts.st_uid}:{facts.st_gid}"
        )
    if facts.st_size == 0:
        return DataProblem(
            path, "0 bytes", "there are no rows in it", "at least one row", DataReason.EMPTY_DATASET
        )
    return None


def _no_permission(path: str, facts: str) -> DataProblem:
    return DataProblem(
        path,
        facts,
        f"uid {os.getuid()} may not read it",
        "a file that this user may read",
        DataReason.NO_PERMISSION,
    )


def _open_parquet(path: str) -> pq.ParquetFile | DataProblem:
    with open(path, "rb") as file:
        head = file.read(8)
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        tail = file.read(8)
    if head[:4] == _ENCRYPTED_MAGIC:
        got, why = "an encrypted parquet file", "no key is asked for here"
        return DataProblem(path, got, why, "the file decrypted", DataReason.NOT_PARQUET)
    if head[:4] != _MAGIC or tail[-4:] != _MAGIC:
        why = "no parquet file" if head[:4] != _MAGIC else "the end of the file is missing"
        return DataProblem(
            path,
            f"first bytes {head!r}, last bytes {tail!r}",
            why,
            "a parquet file, or format: jsonl",
            DataReason.NOT_PARQUET,
        )
    try:
        return pq.ParquetFile(
            path,
            buffer_size=1 << 20,
            pre_buffer=False,
            page_checksum_verification=True,
            # An extension type is code that a file asks for: only what is stored is read.
            arrow_extensions_enabled=False,
        )
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        return DataProblem(path, "a damaged footer", reason, _REWRITE, DataReason.NOT_PARQUET)


def _parquet_problem(
    path: str, file: pq.ParquetFile, columns: tuple[str, ...]
) -> DataProblem | None:
    facts = file.metadata
    if facts.num_rows == 0:
        return DataProblem(
            path,
            f"0 rows in {facts.num_row_groups} row groups",
            "there is nothing to draw from",
            "at least one row",
            DataReason.EMPTY_DATASET,
        )
    found = file.schema_arrow.names
    repeated = next((name for name in columns if found.count(name) > 1), None)
    if repeated is None:
        return None
    return DataProblem(
        f"{path}:{repeated}",
        f"{found.count(repeated)} columns of this name",
        "which of them is meant cannot be told",
        "each name once",
        DataReason.SCHEMA_MISMATCH,
    )


def _missing(path: str, file: pq.ParquetFile, required: tuple[str, ...]) -> DataProblem | None:
    found = file.schema_arrow.names
    missing = [name for name in required if name not in found]
    if not missing:
        return None
    listed = ", ".join(found[:_LISTED_COLUMNS]) + (", ..." if len(found) > _LISTED_COLUMNS else "")
    return DataProblem(
        f"{path}:{missing[0]}",
        "no such column",
        f"the columns are {listed}",
        COLUMNS_ALLOWED,
        DataReason.COLUMN_MISSING,
    )
