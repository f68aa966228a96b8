"""Data sets of the Hugging Face hub: their files, as `spec.data` reads them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from ppojob_api.problem import counted, printable, shown
from ppojob_cli.input_error import InputError
from ppojob_cli.model import HUB_ID, download
from ppojob_trainer.data.file_checks import open_row_file
from ppojob_trainer.data.problems import DataProblem

ENDINGS: Final = (".parquet", ".jsonl", ".ndjson", ".json")


def fetched(hub_id: str, output: Path | None, pattern: str) -> Path:
    """Download the data files of the repository `<owner>/<name>` that match a pattern.

    The cache of the hub's library is removed, unless the folder had a `.cache` before: it may be a
    home folder.

    Raises:
        InputError: there is no such repository, or it cannot be reached.
    """
    if not HUB_ID.fullmatch(hub_id):
        raise InputError(
            f"{printable(hub_id)}: got {shown(hub_id)}: there is no such folder, and it is no hub"
            " id; a folder, or <owner>/<name> on the hub"
        )
    if output is None:
        raise InputError(f"--output: got nothing: {hub_id} is fetched to a folder; --output DIR")
    wanted = [f"{pattern}{ending}" for ending in ENDINGS]
    wanted += [pattern] if pattern.endswith(ENDINGS) else []
    cache = output / ".cache"
    had_cache = cache.exists()
    remedy = (
        f"fetched where the hub can be reached: hf download --repo-type dataset {hub_id}"
        " --local-dir DIR"
    )
    download(hub_id, remedy, repo_type="dataset", local_dir=output, allow_patterns=wanted)
    if not had_cache:
        shutil.rmtree(cache, ignore_errors=True)
    return output


def described(folder: Path) -> Iterator[str]:
    """Describe each data file below a folder in a line; an `InputError` if there are none."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.suffix in ENDINGS and path.is_file()
    ]
    if not files:
        raise InputError(
            f"{folder}: got no data file: nothing could be read; files that end in"
            f" {', '.join(ENDINGS)}"
        )
    for path in files:
        yield f"{path}: {_content(path)}"


def _content(path: Path) -> str:
    opened = open_row_file(str(path))
    if isinstance(opened, DataProblem):
        return f"not read: {opened.got}: {opened.why}"
    try:
        if path.suffix == ".parquet":
            columns = pq.read_schema(path).names
        else:
            rows = opened.rows()
            first = next(rows, {})
            if isinstance(first, DataProblem):
                return f"not read: {first.got}: {first.why}"
            columns = list(first)
            for _ in rows:
                pass
        return f"{counted(opened.num_rows, 'row')} of {', '.join(map(str, columns))}"
    finally:
        opened.close()
