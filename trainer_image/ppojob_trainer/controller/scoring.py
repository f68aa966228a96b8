"""Scoring: reward functions, a reward model, or the sum of both.

Texts go directly from the ranks that own the rows to those that score them; the controller assigns
the work, and gets numbers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.samples import excerpt
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.json_value import plain_text
from ppojob_trainer.rewards.wire import NotScored
from ppojob_trainer.rpc.client import Pending
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.messages.scoring import RowScore, Score, ScoreByModel, Scored, SendTexts
from ppojob_trainer.rpc.methods import SCORE, SCORE_BY_MODEL, SEND_TEXTS, Method
from ppojob_trainer.rpc.wire import CHUNK_BYTES, RequestId, chunks, encode

Answer = TypeVar("Answer", bound=msgspec.Struct)
Item = TypeVar("Item", bound=msgspec.Struct)


@dataclass(frozen=True)
class RewardModel:
    """Where the reward model runs, and how its score counts.

    Attributes:
        mean: subtracted from its score.
        weight: factor of the difference.
        began: start of the run, in unix seconds.
    """

    host: RoleGroup
    mean: float
    weight: float
    began: float


@dataclass(frozen=True)
class _Begun(Generic[Answer]):
    """Scoring requests in flight.

    Attributes:
        rounds: requests, one for each rank in each round.
        id_: id of the work; its index counts rounds.
        first: the first round, which is in flight.
    """

    group: RoleGroup
    method: Method[Any, Answer]
    rounds: list[list[msgspec.Struct]]
    id_: RequestId
    first: Pending[Answer]

    @property
    def is_over(self) -> bool:
        """Whether all answers have arrived without waiting."""
        return self.first.is_done and self.first.refusal is None and len(self.rounds) == 1

    def answers(self, roles: Roles) -> list[Answer]:
        """Return the answers in item order: rank by rank."""
        asked = [roles.gather(self.first)]
        for index, requests in enumerate(self.rounds[1:], start=1):
            id_ = msgspec.structs.replace(self.id_, index=index)
            asked.append(roles.call(self.group, self.method, requests, id_))
        return [answer for of_rank in zip(*asked, strict=True) for answer in of_rank]


@dataclass
class Scoring:
    """Scores batches, each once until the job rewinds.

    A scorer may be lost before its step is done. Its scores are kept here: a user's function or an
    LLM judge may answer differently when asked again, and the owners of the rows have the scores
    already.

    Attributes:
        functions: the role that runs reward functions; None if only a model scores.
        model: the reward model; with neither of them the scores are NaN.
        chunk_bytes: limit of one request about a rank's rows.
    """

    roles: Roles
    owner: RoleGroup
    functions: RoleGroup | None
    model: RewardModel | None
    chunk_bytes: int = CHUNK_BYTES
    _scored: dict[str, tuple[BatchName, list[RowScore]]] = field(default_factory=dict)
    _begun: dict[str, tuple[BatchName, _Begun[Scored]]] = field(default_factory=dict)

    @contextmanager
    def begun(self, batch: Batch, step: int) -> Iterator[Callable[[], None]]:
        """Begin to score the rows; the returned function waits and fills the scores in.

        Reward functions work meanwhile in pods of their own. A reward model's ranks may get other
        requests meanwhile, so they begin at the end.
        """
        name = batch.name(self.roles.rewinds, step)
        last, known = self._scored.get(batch.purpose, (None, []))
        if last == name:
            yield lambda: batch.set_scores(known)
            return
        functions = None if self.functions is None else self._begin(self.functions, batch, step)

        def finish() -> None:
            scores = None if functions is None else self._by_functions(functions, batch)
            if self.model is not None:
                judged = self._by_model(self.model, batch, step)
                scores = _sum(scores, judged, self.model)
            if scores is None:  # a job that only generates
                scores = [RowScore(row, math.nan, b"{}") for row in range(batch.num_rows)]
            self._scored[batch.purpose] = name, scores
            batch.set_scores(scores)

        try:
            yield finish
        finally:
            if functions is not None:
                self.roles.caller.give_up(functions.first)

    def _begin(self, group: RoleGroup, batch: Batch, step: int) -> _Begun[Scored]:
        """Score one range of rows per pod; answers from before a role was lost count."""
        name = batch.name(self.roles.rewinds, step)
        last, known = self._begun.get(batch.purpose, (None, None))
        if known is not None and last == name and known.is_over:
            return known
        items = [batch.score_items(*part) for part in self._send_texts(group, batch, step)]
        id_ = RequestId(0, step, f"{batch.label}/score")
        begun = self._asked(group, SCORE, items, lambda some: Score(name, some), id_)
        self._begun[batch.purpose] = name, begun
        return begun

    def _by_functions(self, begun: _Begun[Scored], batch: Batch) -> list[RowScore]:
        answers = begun.answers(self.roles)
        failure = next((answer.failure for answer in answers if answer.failure is not None), None)
        if failure is not None:
            self.roles.raise_if_lost()
            raise _failed(begun.group, failure, batch)
        return [score for answer in answers for score in answer.scores]

    def _by_model(self, model: RewardModel, batch: Batch, step: int) -> list[float]:
        """Ask all ranks of the model, which work together, also those without rows."""
        name = batch.name(self.roles.rewinds, step)
        items = [
            batch.model_score_items(*part) for part in self._send_texts(model.host, batch, step)
        ]
        items += [[]] * (len(model.host.ranks) - len(items))
        id_ = RequestId(0, step, f"{batch.label}/judge")
        begun = self._asked(
            model.host,
            SCORE_BY_MODEL,
            items,
            lambda some: ScoreByModel(name, some, model.began),
            id_,
        )
        return [score for answer in begun.answers(self.roles) for score in answer.scores]

    def _asked(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        items: list[list[Item]],
        request: Callable[[list[Item]], msgspec.Struct],
        id_: RequestId,
    ) -> _Begun[Answer]:
        """Ask ranks for scores of items, in several rounds if one request cannot hold them.

        `items` are those of each rank, from the first on; each round asks all of these ranks.
        `request` builds a request for some of them.
        """
        cuts = [
            chunks([len(encode(item)) for item in of_rank], self.chunk_bytes) for of_rank in items
        ]
        rounds = [
            [
                request(of_rank[slice(*cut[index])] if index < len(cut) else [])
                for of_rank, cut in zip(items, cuts, strict=True)
            ]
            for index in range(max(map(len, cuts)))
        ]
        first = self.roles.submit(group, method, rounds[0], id_)
        return _Begun(group, method, rounds, id_, first)

    def _send_texts(self, group: RoleGroup, batch: Batch, step: int) -> list[tuple[int, int]]:
        """Have the owners send all texts to a role's ranks; return each rank's range of rows."""
        # A function may compare the responses to a prompt with each other.
        whole = batch.samples if group is self.functions else 1
        runs = shares(batch.num_rows // whole, len(group.ranks))
        parts = [(first * whole, last * whole) for first, last in runs]
        for rank, (first, last) in enumerate(parts):
            senders = batch.owners_of(first, last)
            requests = [
                SendTexts(
                    batch=batch.name(self.roles.rewinds, step),
                    role=group.name,
                    host=group.ranks[rank].host,
                    port=group.ranks[rank].port,
                    attempt=group.attempt,
                    first=begin,
                    last=end,
                )
                for _, begin, end in senders
            ]
            # A restarted role must get the texts again: its attempt is in the id.
            stage = f"{batch.label}/send_texts/{group.name}.{group.attempt}"
            id_ = RequestId(0, step, stage, rank)
            ranks = [owner for owner, _, _ in senders]
            self.roles.call(self.owner, SEND_TEXTS, requests, id_, ranks=ranks)
        return parts


def _failed(group: RoleGroup, failure: NotScored, batch: Batch) -> RewardFailed:
    """Return the failure with its prompt, which the scorer does not know."""
    lines = [failure.message]
    if failure.row is not None:
        asked = batch.prompt_of(failure.row)
        prompt = asked.prompt if isinstance(asked.prompt, str) else str(asked.prompt[-1]["content"])
        lines += excerpt(prompt, failure.response, plain_text(asked.ground_truth))
    return RewardFailed(group.name, "\n".join(lines))


def _sum(
    functions: list[RowScore] | None, judged: list[float], model: RewardModel
) -> list[RowScore]:
    """Sum both scores; the model's own is added to the functions' values."""
    counted = [model.weight * (score - model.mean) for score in judged]
    if functions is None:
        return [
            RowScore(row, score, msgspec.json.encode({"acc": score}))
            for row, score in enumerate(counted)
        ]
    ordered = sorted(functions, key=lambda score: score.row)
    return [
        RowScore(
            found.row,
            found.score + own,
            msgspec.json.encode(msgspec.json.decode(found.extras) | {"reward_model/score": score}),
        )
        for found, score, own in zip(ordered, judged, counted, strict=True)
    ]
