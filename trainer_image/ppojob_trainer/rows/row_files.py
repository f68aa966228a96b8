"""Row files: a parquet folder per step, for analysis and for replay.

A folder holds everything that was generated and scored (token ids, log-probabilities, their origin
and scores), so a replay needs neither rollout engine nor reward functions. Readers raise `OSError`
or `pyarrow.ArrowException`, writers `StorageError`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer import durable
from ppojob_trainer.data.columns import AGENT_COLUMN, EXTRA_COLUMN, REWARD_COLUMN
from ppojob_trainer.data.media.images import LaterImage
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.json_value import Json, plain_text
from ppojob_trainer.rewards.records import ValueKind
from ppojob_trainer.rows.row_metadata import RowMetadata, tokens_by_version

ROWS_POINT = durable.point("rows.part", *durable.FILE_ACTS)
RESPONSES_POINT = durable.point("responses", *durable.FILE_ACTS)

_SEGMENT: Final = pa.struct(
    [
        ("tokens", pa.int32()),
        ("version", pa.int32()),
        ("reward", pa.float64()),
        ("begins_context", pa.bool_()),
    ]
)
_VERSION: Final = "segments.list.element.version"
_IMAGE: Final = pa.struct([("start", pa.int32()), ("file", pa.large_binary())])
_GROUP_ROWS: Final = 16
"""Rows per row group of a part with images, so that reading a few rows reads few others."""
SCHEMA: Final = pa.schema(
    [
        ("step", pa.int64()),
        ("row", pa.int64()),
        ("prompt_id", pa.int64()),
        ("sample", pa.int32()),
        ("data_source", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("ground_truth", pa.string()),
        ("truth_is_json", pa.bool_()),
        ("score", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
        ("truncated", pa.bool_()),
        ("response_ids", pa.list_(pa.int32())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("segments", pa.list_(_SEGMENT)),
        ("experts", pa.binary()),
        ("pictures", pa.list_(_IMAGE)),
        ("picture_bytes", pa.int64()),
        ("figures", pa.string()),
        ("extra_info", pa.string()),
        ("reward_values", pa.string()),
    ]
)
"""Columns of every part; further columns are the `reward_values`.

- `ground_truth`: text, or JSON if `truth_is_json`; null if there is none.
- `score`: NaN in a job that only generates.
- `segments`: consecutive tokens of a response by one author. `version` is that of the weights that
  generated them; null for given tokens (of a tool, say) that are not trained; -1 for given tokens
  of the data that are trained (algorithm.guidance). `reward` is a tool's reward for a turn.
  `begins_context`: a new context begins here, without the tokens before it.
- `experts`: experts of each token that the engine read, in every layer; null if not recorded.
- `pictures`: images from tools, each with its first token in the response; null if there are
  none; `picture_bytes` is their encoded size, null for 0.
- `figures`: JSON object of turns and calls; null for rows of one turn.
- `extra_info`: JSON object.
- `reward_values`: JSON object of the values that scorers returned besides the score.
"""

ADVANTAGES: Final = pa.schema(
    [
        ("step", pa.int64()),
        ("round", pa.int64()),
        ("row", pa.int64()),
        ("prompt_id", pa.int64()),
        ("sample", pa.int32()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
    ]
)
"""Columns of the trained rows of a step; `step`, `round` and `row` are those of their parts.
`reward` is the score with its penalties (length, KL), `advantage` the mean over trained tokens."""

_VALUE_TYPES: Final = {"number": pa.float64(), "text": pa.string()}
_VERDICT: Final = (
    *("row", "score", "response_tokens", "truncated", "figures", "reward_values", "segments"),
    "picture_bytes",
)
TOKEN_CELLS: Final = (
    *("truncated", "response_ids", "rollout_logprobs", "segments", "experts", "pictures"),
)


def write_part(folder: Path, part: int, table: pa.Table) -> Path:
    """Write a part; a part that is written again replaces the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    shows = "pictures" in table.column_names and table["pictures"].null_count < table.num_rows
    pq.write_table(table, sink, row_group_size=_GROUP_ROWS if shows else None)
    path = folder / f"part-{part:05d}.parquet"
    durable.write_file(path, sink.getvalue().to_pybytes(), ROWS_POINT)
    return path


def truth_cells(truth: Json) -> dict[str, str | bool | None]:
    """Return the cells of a ground truth, text or any other JSON."""
    text = None if truth is None else plain_text(truth)
    return {"ground_truth": text, "truth_is_json": not isinstance(truth, str | None)}


def with_values(schema: pa.Schema, kinds: Mapping[str, ValueKind]) -> pa.Schema:
    """Add a column for each value of the scorers to a schema."""
    of_values = [pa.field(_value_column(name), _VALUE_TYPES[kind]) for name, kind in kinds.items()]
    return pa.schema([*schema, *of_values])


def value_cells(
    values: Mapping[str, float | str], kinds: Mapping[str, ValueKind]
) -> dict[str, float | str]:
    """Return the cells of the scorers' values of a row."""
    return {
        _value_column(name): plain_text(value) if kinds[name] == "text" else value
        for name, value in values.items()
    }


def _value_column(name: str) -> str:
    """Return the column of a value, prefixed if the name is already a column."""
    return f"reward_extra/{name}" if name in SCHEMA.names else name


def write_advantages(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rewards and advantages of a step's rows; not synced, since no resume reads it."""
    temporary = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=ADVANTAGES), temporary)
        temporary.replace(path)
    except OSError as error:
        durable.raise_storage_error(path, "write", error)


def read_row_metadata(parts: Iterable[Path]) -> tuple[list[RowMetadata], list[float], list[bytes]]:
    """Read all rows of a step without tokens; return also (rows,) scores, and values as JSON."""
    rows = _read(parts, _VERDICT).to_pylist()
    metadata = [
        RowMetadata(
            row["response_tokens"],
            row["truncated"],
            figures=(row["figures"] or "").encode(),
            versions=tokens_by_version((one["version"], one["tokens"]) for one in row["segments"]),
            later_image_bytes=row["picture_bytes"] or 0,
        )
        for row in rows
    ]
    scores = [row["score"] for row in rows]
    return metadata, scores, [row["reward_values"].encode() for row in rows]


def later_images(cell: list[dict[str, Any]] | None) -> tuple[LaterImage, ...]:
    """Return the images of a row from the column `pictures`."""
    return tuple(LaterImage(**one) for one in cell or ())


def has_given(part: Path) -> bool:
    """Whether a part has given responses (`OF_DATA`), by the statistics in its footer."""
    footer = pq.read_metadata(part)
    groups = map(footer.row_group, range(footer.num_row_groups))
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    of_versions = [one.statistics for one in columns if one.path_in_schema == _VERSION]
    return any(one and one.has_min_max and one.min < 0 for one in of_versions)


def read_tokens(parts: Iterable[Path], first: int, last: int) -> dict[str, list[Any]]:
    """Read the token columns of rows `[first, last)` in order."""
    columns: dict[str, list[Any]] = _read(parts, ("row", *TOKEN_CELLS), first, last).to_pydict()
    return columns


def _read(
    parts: Iterable[Path], columns: Sequence[str], first: int = 0, last: int | None = None
) -> pa.Table:
    filters = [("row", ">=", first)] + ([] if last is None else [("row", "<", last)])
    names = list(columns)
    tables = [
        pq.read_table(part, columns=names, filters=filters, use_threads=False) for part in parts
    ]
    return pa.concat_tables(tables).sort_by("row")


def read_responses(parts: Iterable[Path]) -> list[str]:
    """Read (rows,) the responses of a batch, in the order of its rows."""
    tables = [pq.read_table(part, columns=["row", "response"]) for part in parts]
    responses: list[str] = pa.concat_tables(tables).sort_by("row")["response"].to_pylist()
    return responses


def write_responses(path: Path, prompts: Sequence[PromptRow], responses: Sequence[str]) -> None:
    """Write one row per prompt in the columns of verl's main_generation: with all its responses.

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
    durable.write_file(path, sink.getvalue().to_pybytes(), RESPONSES_POINT)


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
