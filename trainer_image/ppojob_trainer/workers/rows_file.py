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
    """The rows of a request as a table, in row order."""
    begin = request.first - rows.first
    records = []
    for position, data_source in enumerate(request.data_sources):
        tokens = rows.experience.prompts[begin + position]
        prompt = chat.decode(tokens.tolist(), skip_special_tokens=False)
        truth = json.dumps(json.loads(request.ground_truths[position]))
        for sample in range(rows.samples):
            told = position * rows.samples + sample
            row = begin * rows.samples + told
            response = rows.response(row)
            records.append(
                {
                    "row": rows.first_row + row,
                    "prompt_id": rows.prompt_ids[begin + position],
                    "sample": sample,
                    "data_source": data_source,
                    "prompt": prompt,
                    "response": chat.decode(response, skip_special_tokens=True),
                    "ground_truth": truth,
                    "score": request.scores[told],
                    "extras": json.dumps(json.loads(request.extras[told]), sort_keys=True),
                    "prompt_tokens": len(tokens),
                    "response_tokens": len(response),
                    "truncated": rows.truncated[row],
                }
            )
    return pa.Table.from_pylist(records, schema=SCHEMA)


def write_part(folder: Path, part: int, table: pa.Table) -> None:
    """Write a part; one that is written again has the same content and replaces the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    name = f"part-{part:05d}.parquet"
    durable.write_file(folder / name, sink.getvalue().to_pybytes(), ROWS_POINT)
