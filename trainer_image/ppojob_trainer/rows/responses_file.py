"""Prompts with their responses in one parquet file, in the columns of verl's main_generation."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer import durable
from ppojob_trainer.data.columns import AGENT_COLUMN, EXTRA_COLUMN, REWARD_COLUMN
from ppojob_trainer.data.prompt_store import PromptRow

_POINT: Final = durable.point("responses", *durable.FILE_ACTS)


def read_responses(parts: Iterable[Path]) -> list[str]:
    """Read (rows,) the responses of a batch, in the order of its rows."""
    tables = [pq.read_table(part, columns=["row", "response"]) for part in parts]
    responses: list[str] = pa.concat_tables(tables).sort_by("row")["response"].to_pylist()
    return responses


def write_responses(path: Path, prompts: Sequence[PromptRow], responses: Sequence[str]) -> None:
    """Write one row per prompt: the columns of prompt files, and a list of responses.

    Cells of a column that have no common parquet type, such as numbers and texts, become JSON.
    """
    samples = len(responses) // len(prompts)
    truths = [prompt.ground_truth for prompt in prompts]
    columns: dict[str, pa.Array] = {
        "data_source": pa.array([prompt.data_source for prompt in prompts]),
        "prompt": _column([prompt.prompt for prompt in prompts]),
    }
    if any(truth is not None for truth in truths):
        truth = _column(truths)
        style = pa.array(["rule"] * len(truths))
        columns[REWARD_COLUMN] = pa.StructArray.from_arrays(
            [style, truth], ["style", "ground_truth"]
        )
    if any(prompt.extra_info for prompt in prompts):
        columns[EXTRA_COLUMN] = _column([dict(prompt.extra_info) or None for prompt in prompts])
    if any(prompt.agent for prompt in prompts):
        columns[AGENT_COLUMN] = pa.array([prompt.agent or None for prompt in prompts])
    columns["responses"] = pa.array(
        [list(responses[first : first + samples]) for first in range(0, len(responses), samples)]
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    durable.write_file(path, sink.getvalue().to_pybytes(), _POINT)


def _column(cells: list[Any]) -> pa.Array:
    try:
        column = pa.array(cells)
    except pa.ArrowException:
        column = None
    # Parquet has no object without fields.
    if column is None or "struct<>" in str(column.type):
        cells = [cell if isinstance(cell, str | None) else json.dumps(cell) for cell in cells]
        column = pa.array(cells, pa.string())
    return column
