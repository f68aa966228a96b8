"""Writes rows in verl's columns to parquet files."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

_GROUP_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of a task; `ability` is verl's column, and `extra_info` gets split and index too."""

    data_source: str
    prompt: str | list[dict[str, str]]
    ground_truth: Json
    ability: str = "math"
    extra_info: dict[str, Json] = field(default_factory=dict)

    def columns(self, split: str, index: int) -> dict[str, Json | list[dict[str, str]]]:
        """Return the row in verl's columns."""
        return {
            "data_source": self.data_source,
            "prompt": self.prompt,
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {"split": split, "index": index, **self.extra_info},
        }


def write_splits(folder: Path, splits: Mapping[str, Iterable[TaskRow]]) -> dict[Path, int]:
    """Write ``<folder>/<split>.parquet`` of each split; return the number of rows of each file.

    The same rows give the same bytes. Raises ConfigError if there are no rows, or the folder, which
    is created if needed, cannot be written.
    """
    written = {}
    with writable(folder):
        for split, rows in splits.items():
            path = folder / f"{split}.parquet"
            written[path] = _write(path, split, rows)
            if written[path] == 0:
                raise ConfigError(f"{path}: got no rows: nothing to write; at least one row")
    return written


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Create a folder for the block; raises ConfigError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ConfigError(
            f"{folder}: got {error.strerror or error}: files cannot be written there; "
            "a folder that this user may write"
        ) from None


def _write(path: Path, split: str, rows: Iterable[TaskRow]) -> int:
    writer: pq.ParquetWriter | None = None
    written = 0
    numbered = (row.columns(split, index) for index, row in enumerate(rows))
    try:
        while group := list(itertools.islice(numbered, _GROUP_ROWS)):
            table = pa.Table.from_pylist(group)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema))
            written += len(group)
    finally:
        if writer is not None:
            writer.close()
    return written
