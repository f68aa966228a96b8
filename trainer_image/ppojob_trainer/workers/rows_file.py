"""The rows of a rank as a table for the disk, and back."""

import json
from typing import Any, Final

import pyarrow as pa

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.json_value import plain_text
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.row_files import SCHEMA
from ppojob_trainer.rpc.messages.rows import WriteRows
from ppojob_trainer.workers.row_store import OwnedRows

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
        extra_info = request.extra_infos[position].decode()
        for sample in range(rows.samples):
            told = position * rows.samples + sample
            row = begin * rows.samples + told
            response, logprobs = rows.response(row)
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
                    "response_ids": response,
                    "rollout_logprobs": logprobs,
                    "segments": [span._asdict() for span in rows.spans[row]],
                    "figures": rows.figures[row].decode() or None,
                    "extra_info": extra_info,
                    "reward_values": request.extras[told].decode(),
                    **{columns[name].name: _cell(columns[name], values[name]) for name in values},
                }
            )
    return pa.Table.from_pylist(records, schema=pa.schema([*SCHEMA, *columns.values()]))


def trajectories(columns: dict[str, list[Any]]) -> list[Trajectory]:
    """Rows that `row_files.read_tokens` gave, as they were generated."""
    return [
        Trajectory(tuple(_segments(ids, logprobs, segments)), "length" if truncated else "stop")
        for truncated, ids, logprobs, segments in zip(
            columns["truncated"],
            columns["response_ids"],
            columns["rollout_logprobs"],
            columns["segments"],
            strict=True,
        )
    ]


def _segments(ids: list[int], logprobs: list[float], spans: list[dict[str, Any]]) -> list[Segment]:
    found, start = [], 0
    for span in spans:
        part = slice(start, start + span["tokens"])
        start = part.stop
        drawn = () if span["version"] is None else tuple(logprobs[part])
        # Rows that an earlier version wrote have no rewards of turns.
        reward = span.get("reward") or 0.0
        found.append(Segment(tuple(ids[part]), drawn, span["version"], reward))
    return found


def _cell(column: pa.Field, value: float | str) -> float | str:
    return plain_text(value) if pa.types.is_string(column.type) else value
