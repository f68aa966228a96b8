"""Rows as a part of a parquet folder: what people look at after a step, and scripts read."""

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer import durable
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.json_value import plain_text
from ppojob_trainer.rpc.messages import WriteRows
from ppojob_trainer.workers.row_store import OwnedRows

ROWS_POINT = durable.point("rows.part", *durable.FILE_ACTS)

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("row", pa.int64()),
        ("prompt_id", pa.int64()),
        ("sample", pa.int32()),
        ("data_source", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("ground_truth", pa.string()),
        ("score", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
        ("truncated", pa.bool_()),
    ]
)
"""Columns of every part; a `ground_truth` that is no text is JSON, and null where there is none.

Behind them stands one for each further value of the reward functions.
"""
_TYPES: Final = {"number": pa.float64(), "text": pa.string()}
_OF_REWARDS: Final = "reward_extra/"
"""Before a value whose name is a column's already."""


def rows_table(rows: OwnedRows, request: WriteRows, chat: ChatTokenizer) -> pa.Table:
    """The rows of a request as a table, in row order."""
    begin = request.first - rows.first
    columns = {
        name: pa.field(f"{_OF_REWARDS}{name}" if name in SCHEMA.names else name, _TYPES[kind])
        for name, kind in request.value_kinds.items()
    }
    records = []
    for position, data_source in enumerate(request.data_sources):
        tokens = rows.experience.prompts[begin + position]
        prompt = chat.decode(tokens.tolist(), skip_special_tokens=False)
        truth = json.loads(request.ground_truths[position])
        for sample in range(rows.samples):
            told = position * rows.samples + sample
            row = begin * rows.samples + told
            response = rows.response(row)
            values = json.loads(request.extras[told])
            records.append(
                {
                    "step": request.step,
                    "row": rows.first_row + row,
                    "prompt_id": rows.prompt_ids[begin + position],
                    "sample": sample,
                    "data_source": data_source,
                    "prompt": prompt,
                    "response": chat.decode(response, skip_special_tokens=True),
                    "ground_truth": None if truth is None else plain_text(truth),
                    "score": request.scores[told],
                    "prompt_tokens": len(tokens),
                    "response_tokens": len(response),
                    "truncated": rows.truncated[row],
                    **{columns[name].name: _cell(columns[name], values[name]) for name in values},
                }
            )
    return pa.Table.from_pylist(records, schema=pa.schema([*SCHEMA, *columns.values()]))


def _cell(column: pa.Field, value: float | str) -> float | str:
    return plain_text(value) if pa.types.is_string(column.type) else value


def write_part(folder: Path, part: int, table: pa.Table) -> None:
    """Write a part; one that is written again has the same content and replaces the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    name = f"part-{part:05d}.parquet"
    durable.write_file(folder / name, sink.getvalue().to_pybytes(), ROWS_POINT)
