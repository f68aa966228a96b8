"""Methods of the control RPC: types, limits and allowed callers.

Methods with `once=True` are work: a request id makes retries safe, since the server caches the
answers of this step and the last. The others are queries without side effects.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ppojob_trainer import failpoints
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rpc.identity import PodIdentity
from ppojob_trainer.rpc.messages import (
    agents,
    demonstrations,
    pods,
    rollout,
    rows,
    saving,
    scoring,
    training,
)
from ppojob_trainer.rpc.wire import Nothing

Request = TypeVar("Request", bound=msgspec.Struct)
Answer = TypeVar("Answer", bound=msgspec.Struct)

CONTROLLER = "controller"
MEBI = 1 << 20


@dataclass(frozen=True)
class Method(Generic[Request, Answer]):
    """A method."""

    name: str
    request: type[Request]
    answer: type[Answer]
    callers: frozenset[str] = frozenset({CONTROLLER})  # roles that may call it
    limit_bytes: int = 64 * MEBI  # maximum size of the request body
    deadline_seconds: float | None = None  # timeout of the caller; None for the job's stage timeout
    once: bool = True  # whether it is work with a request id
    has_attempt: bool = True  # whether the request id contains the attempt of the role


IMAGES_BYTES = 2_048 * MEBI
"""Limit of the prompts of a whole validation with images."""
GENERATING_ROLES = frozenset({"actorRollout", "rollout"})
"""Roles whose ranks generate and call tools."""

STATUS = Method("status", Nothing, pods.PodStatus, once=False, deadline_seconds=10)
IDENTITY = Method("identity", Nothing, PodIdentity, once=False)
START = Method("start", pods.StartRanks, pods.PodStatus, once=False)

RESTORE = Method("restore", saving.Restore, Nothing)
SYNC_WEIGHTS = Method("sync_weights", rollout.SyncWeights, Nothing)
GENERATE = Method("generate", rollout.Generate, rollout.Generated, limit_bytes=IMAGES_BYTES)
ROWS_DRAWN = Method("rows_drawn", rollout.AskRowsDrawn, rollout.RowsDrawn, once=False)
SYNC_ENGINE_WEIGHTS = Method("sync_engine_weights", rollout.SyncEngineWeights, Nothing)
TRANSFER_ROWS = Method("transfer_rows", rollout.TransferRows, Nothing)
QUERY_ROWS = Method("query_rows", rollout.QueryRows, rollout.QueriedRows, once=False)
LOAD_ROWS = Method("load_rows", rollout.LoadRows, Nothing, limit_bytes=IMAGES_BYTES)
DEMONSTRATE = Method("demonstrate", demonstrations.Demonstrate, Nothing, limit_bytes=IMAGES_BYTES)
MEASURE_LOSS = Method(
    "measure_loss", demonstrations.GivenRows, PassStatistics, limit_bytes=IMAGES_BYTES
)
SUPERVISE = Method("supervise", demonstrations.GivenRows, Nothing, limit_bytes=IMAGES_BYTES)
SEND_TEXTS = Method("send_texts", scoring.SendTexts, Nothing)
PUT_TEXTS = Method(
    "put_texts",
    scoring.Texts,
    Nothing,
    callers=frozenset({"actorRollout"}),
    limit_bytes=256 * MEBI,
    once=False,
)
"""Not work, although it changes state: it is idempotent and handled during work."""
SCORE = Method("score", scoring.Score, scoring.Scored, limit_bytes=256 * MEBI)
SCORE_BY_MODEL = Method(
    "score_by_model", scoring.ScoreByModel, scoring.ModelScored, limit_bytes=IMAGES_BYTES
)
ACT = Method("act", agents.Act, agents.Acted, callers=GENERATING_ROLES, has_attempt=False)
"""Its callers do not know the attempt of the role; any attempt can answer."""
PLACE_ROWS = Method("place_rows", rows.PlaceRows, Nothing)
REPROMPT = Method("reprompt", rows.Reprompt, rows.Reprompted)
OPEN_CHANNEL = Method("open_channel", rows.OpenChannel, Nothing)
MOVE_ROWS = Method("move_rows", rows.MoveRows, Nothing)
MOVE_COLUMNS = Method("move_columns", rows.MoveColumns, Nothing)
CUT_CHANNEL = Method("cut_channel", rows.CutChannel, Nothing, once=False, deadline_seconds=5)
FORWARD = Method("forward", training.Forward, PassStatistics)
BARRIER = Method("barrier", Nothing, Nothing)
"""Answered after all earlier requests."""
ADVANTAGES = Method("advantages", training.Advantages, training.Advantaged)
UPDATE = Method("update", training.Update, PassStatistics)
WRITE_ROWS = Method("write_rows", rows.WriteRows, saving.Saved, limit_bytes=256 * MEBI)
SAVE_SHARDS = Method("save_shards", saving.SaveShards, saving.Saved)
SHARDS_WRITTEN = Method("shards_written", saving.AskWritten, saving.Written, once=False)
EXPORT_MODEL = Method("export_model", Nothing, Nothing)

ANSWER_POINTS = {
    work.name: (
        failpoints.declare(f"rpc.{work.name}.answer.before"),
        failpoints.declare(f"rpc.{work.name}.answer.after"),
    )
    for work in list(vars().values())
    if isinstance(work, Method) and work.once
}
"""Failpoints before and after sending the answer of a work method."""
