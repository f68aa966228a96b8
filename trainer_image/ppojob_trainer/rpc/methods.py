"""Every method of the control RPC, with its types, its limits and who may call it.

A method with `once=True` is work: its request id makes repeating it safe, since the answer is kept
for this step and the last, until the job is rewound. The others are questions that change nothing.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ppojob_trainer import failpoints
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rpc.identity import PodIdentity
from ppojob_trainer.rpc.messages.agents import Act, Acted
from ppojob_trainer.rpc.messages.pods import PodStatus, StartRanks
from ppojob_trainer.rpc.messages.rollout import (
    BringWeights,
    Generate,
    Generated,
    HandOver,
    LoadRows,
    Recall,
    Recalled,
    SyncWeights,
)
from ppojob_trainer.rpc.messages.rows import (
    CutChannel,
    MoveColumns,
    MoveRows,
    OpenChannel,
    PlaceRows,
    WriteRows,
)
from ppojob_trainer.rpc.messages.saving import ExportModel, Restore, Saved, SaveShards
from ppojob_trainer.rpc.messages.scoring import (
    ModelScored,
    Score,
    ScoreByModel,
    Scored,
    SendTexts,
    Texts,
)
from ppojob_trainer.rpc.messages.training import Advantaged, Advantages, Forward, Update
from ppojob_trainer.rpc.wire import Nothing

Request = TypeVar("Request", bound=msgspec.Struct)
Answer = TypeVar("Answer", bound=msgspec.Struct)

CONTROLLER = "controller"
MEBI = 1 << 20


@dataclass(frozen=True)
class Method(Generic[Request, Answer]):
    """One method: its name, its schemas, and its bounds.

    Attributes:
        callers: roles whose key may call it.
        limit_bytes: largest request body that is read.
        deadline_seconds: how long a caller waits; None means that the job's stage limit holds.
        once: whether it is work with a request id.
        has_epoch: whether that id names the epoch of the role; else whichever serves takes it.
    """

    name: str
    request: type[Request]
    answer: type[Answer]
    callers: frozenset[str] = frozenset({CONTROLLER})
    limit_bytes: int = 64 * MEBI
    deadline_seconds: float | None = None
    once: bool = True
    has_epoch: bool = True


GENERATING_ROLES = frozenset({"actorRollout", "rollout"})
"""Whose ranks generate, and call tools for that."""

STATUS = Method("status", Nothing, PodStatus, once=False, deadline_seconds=10)
IDENTITY = Method("identity", Nothing, PodIdentity, once=False)
START = Method("start", StartRanks, PodStatus, once=False)

RESTORE = Method("restore", Restore, Nothing)
SYNC_WEIGHTS = Method("sync_weights", SyncWeights, Nothing)
GENERATE = Method("generate", Generate, Generated, limit_bytes=256 * MEBI)
BRING_WEIGHTS = Method("bring_weights", BringWeights, Nothing)
HAND_OVER = Method("hand_over", HandOver, Nothing)
RECALL = Method("recall", Recall, Recalled, once=False)
LOAD_ROWS = Method("load_rows", LoadRows, Nothing, limit_bytes=256 * MEBI)
SEND_TEXTS = Method("send_texts", SendTexts, Nothing)
PUT_TEXTS = Method(
    "put_texts",
    Texts,
    Nothing,
    callers=frozenset({"actorRollout"}),
    limit_bytes=256 * MEBI,
    once=False,
)
"""No work, though it changes something: taken in beside work, and safe to repeat by its name."""
SCORE = Method("score", Score, Scored, limit_bytes=256 * MEBI)
SCORE_BY_MODEL = Method("score_by_model", ScoreByModel, ModelScored, limit_bytes=256 * MEBI)
ACT = Method("act", Act, Acted, callers=GENERATING_ROLES, has_epoch=False)
"""Its callers are not told when the role is started again; each attempt of it can answer."""
PLACE_ROWS = Method("place_rows", PlaceRows, Nothing)
OPEN_CHANNEL = Method("open_channel", OpenChannel, Nothing)
MOVE_ROWS = Method("move_rows", MoveRows, Nothing)
MOVE_COLUMNS = Method("move_columns", MoveColumns, Nothing)
CUT_CHANNEL = Method("cut_channel", CutChannel, Nothing, once=False, deadline_seconds=5)
FORWARD = Method("forward", Forward, PassStatistics)
BARRIER = Method("barrier", Nothing, Nothing)
"""Nothing to do: done when all that was asked before is."""
ADVANTAGES = Method("advantages", Advantages, Advantaged)
UPDATE = Method("update", Update, PassStatistics)
WRITE_ROWS = Method("write_rows", WriteRows, Saved, limit_bytes=256 * MEBI)
SAVE_SHARDS = Method("save_shards", SaveShards, Saved)
EXPORT_MODEL = Method("export_model", ExportModel, Nothing)

_WORK = [one for one in list(vars().values()) if isinstance(one, Method) and one.once]
ANSWER_POINTS = {
    name: (
        failpoints.declare(f"rpc.{name}.answer.before"),
        failpoints.declare(f"rpc.{name}.answer.after"),
    )
    for name in (method.name for method in _WORK)
}
"""The failpoints before and behind handing out the answer of one method's work."""
