"""Writes rows in verl's columns to parquet files, whole or not at all."""

import contextlib
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

_GROUP_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of a task.

    Attributes:
        data_source: routes to the reward.
        prompt: chat messages, or text.
        ground_truth: what the reward compares with.
        ability: verl's column of that name.
        extra_info: besides split and index.
    """

    data_source: str
    prompt: str | list[dict[str, str]]
    ground_truth: Json
    ability: str = "math"
    extra_info: dict[str, Json] = field(default_factory=dict)

    def columns(self, split: str, index: int) -> dict[str, Json | list[dict[str, str]]]:
        """The row as verl stores it."""
        return {
            "data_source": self.data_source,
            "prompt": self.prompt,
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {"split": split, "index": index, **self.extra_info},
        }


def write_split(folder: Path, split: str, rows: Iterable[TaskRow]) -> tuple[Path, int]:
    """Write ``<folder>/<split>.parquet``, a thousand rows a row group.

    The file appears under its name when it is whole; the same rows give the same bytes.

    Args:
        folder: made if it does not exist.
        split: "train" or "test", as verl names them.
        rows: at least one.

    Returns:
        The file, and its number of rows.

    Raises:
        ConfigError: there are no rows, or the folder cannot be written.
    """
    path = folder / f"{split}.parquet"
    aside = folder / f".{split}.parquet.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _write(aside, split, iter(rows))
        if written == 0:
            raise ConfigError(f"{path}: got no rows: nothing to write; at least one row")
        aside.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{folder}: got {error.strerror or error}: files cannot be written there; "
            "a folder that this user may write"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return path, written


def _write(path: Path, split: str, rows: Iterable[TaskRow]) -> int:
    writer: pq.ParquetWriter | None = None
    written = 0
    numbered = enumerate(rows)
    try:
        while group := [
            row.columns(split, index) for index, row in itertools.islice(numbered, _GROUP_ROWS)
        ]:
            table = pa.Table.from_pylist(group)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema))
            written += len(group)
    finally:
        if writer is not None:
            writer.close()
    return written
