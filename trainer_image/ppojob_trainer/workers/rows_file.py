"""Rows as a part of a parquet folder: what people look at after a step, and scripts read."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_trainer import durable
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.rpc.messages import WriteRows
from ppojob_trainer.workers.row_store import OwnedRows

ROWS_POINT = durable.point("rows.part", *durable.FILE_ACTS)

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("prompt_id", pa.int64()),
        ("sample", pa.int32()),
        ("data_source", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("ground_truth", pa.string()),
        ("score", pa.float64()),
        ("extras", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
        ("truncated", pa.bool_()),
    ]
)
"""Columns of a part; `ground_truth` and `extras` are JSON."""


def rows_table(rows: OwnedRows, request: WriteRows, chat: ChatTokenizer) -> pa.Table:
    """The rows as a table, in row order."""
    prompts = [
        chat.decode(prompt.tolist(), skip_special_tokens=False)
        for prompt in rows.experience.prompts
    ]
    records = []
    for row, score in enumerate(request.scores):
        prompt, sample = divmod(row, rows.samples)
        response = rows.response(row)
        records.append(
            {
                "row": rows.first_row + row,
                "prompt_id": rows.prompt_ids[prompt],
                "sample": sample,
                "data_source": request.data_sources[prompt],
                "prompt": prompts[prompt],
                "response": chat.decode(response, skip_special_tokens=True),
                "ground_truth": json.dumps(json.loads(request.ground_truths[prompt])),
                "score": score,
                "extras": json.dumps(json.loads(request.extras[row]), sort_keys=True),
                "prompt_tokens": len(rows.experience.prompts[prompt]),
                "response_tokens": len(response),
                "truncated": rows.truncated[row],
            }
        )
    return pa.Table.from_pylist(records, schema=SCHEMA)


def write_part(folder: Path, rank: int, table: pa.Table) -> None:
    """Write a rank's part; a part written again has the same content and replaces the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    name = f"part-{rank:05d}.parquet"
    durable.write_file(folder / name, sink.getvalue().to_pybytes(), ROWS_POINT)
