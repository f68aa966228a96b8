"""Scoring by reward functions, a reward model, or both.

Texts go directly from the ranks that own the rows to the ranks that score them; the controller
assigns the rows and receives scores.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

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
from ppojob_trainer.rpc.wire import CHUNK_BYTES, Item, RequestId, portions

Answer = TypeVar("Answer", bound=msgspec.Struct)


@dataclass(frozen=True)
class RewardModel:
    """The reward model; its contribution is `weight * (score - mean)`.

    `began` is the start of the run, in unix seconds.
    """

    host: RoleGroup
    mean: float
    weight: float
    began: float


@dataclass
class Scoring:
    """Scores each batch once until the job rewinds.

    Scores are cached: after the loss of a scorer, a reward function or judge could return other
    scores than those that the owners of the rows already have.
    """

    roles: Roles
    functions: RoleGroup | None  # role that runs reward functions; None without any
    model: RewardModel | None  # the reward model; without functions and model, scores are NaN
    chunk_bytes: int = CHUNK_BYTES  # limit of one request
    _scored: dict[str, tuple[BatchName, list[RowScore]]] = field(default_factory=dict)

    @contextmanager
    def start(self, batch: Batch) -> Iterator[Callable[[], None]]:
        """Start to score the rows; yield a function that waits and sets the scores.

        Reward functions run at once, in their own pods. A reward model runs in the yielded
        function, since its ranks may have other work until then.
        """
        name = batch.name(self.roles.rewinds)
        last, known = self._scored.get(batch.purpose, (None, []))
        if last == name:
            yield lambda: batch.set_scores(known)
            return
        first, by_functions = None, None
        if self.functions is not None:
            first, by_functions = self._by_functions(self.functions, batch)

        def finish() -> None:
            scores = None if by_functions is None else by_functions()
            if self.model is not None:
                scores = _sum(scores, self._by_model(self.model, batch), self.model)
            if scores is None:  # a job that only generates
                scores = [RowScore(row, math.nan, b"{}") for row in range(batch.num_rows)]
            self._scored[batch.purpose] = name, scores
            batch.set_scores(scores)

        try:
            yield finish
        finally:
            if first is not None:
                self.roles.caller.cancel(first)

    def _by_functions(
        self, group: RoleGroup, batch: Batch
    ) -> tuple[Pending[Scored], Callable[[], list[RowScore]]]:
        """Request the scores of one range of rows per pod; see `_submit`."""
        name = batch.name(self.roles.rewinds)
        items = [batch.score_items(*part) for part in self._send_texts(group, batch)]
        id_ = RequestId(0, batch.step, f"{batch.label}/score")
        first, answers = self._submit(group, SCORE, items, partial(Score, name), id_)

        def scores() -> list[RowScore]:
            found = answers()
            failure = next((answer.failure for answer in found if answer.failure is not None), None)
            if failure is not None:
                self.roles.raise_if_lost()
                raise _failed(group, failure, batch)
            return [score for answer in found for score in answer.scores]

        return first, scores

    def _by_model(self, model: RewardModel, batch: Batch) -> list[float]:
        """Call all ranks of the model, a collective call, also those without rows."""
        name = batch.name(self.roles.rewinds)
        items = [batch.model_score_items(*part) for part in self._send_texts(model.host, batch)]
        items += [[]] * (len(model.host.ranks) - len(items))
        id_ = RequestId(0, batch.step, f"{batch.label}/judge")
        request = partial(ScoreByModel, name, began=model.began)
        _, answers = self._submit(model.host, SCORE_BY_MODEL, items, request, id_)
        return [score for answer in answers() for score in answer.scores]

    def _submit(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        items: list[list[Item]],
        request: Callable[[list[Item]], msgspec.Struct],
        id_: RequestId,
    ) -> tuple[Pending[Answer], Callable[[], list[Answer]]]:
        """Request scores of items, in several rounds if one request would be too large.

        `items` has a list for each rank, from rank 0; each round calls all of these ranks.
        `request` builds a request for some items. The first round is then in flight, and may be
        cancelled; the returned function waits for the answers to all, in item order.
        """
        rounds = [list(map(request, parts)) for parts in portions(items, self.chunk_bytes)]
        first = self.roles.submit(group, method, rounds[0], id_)

        def answers() -> list[Answer]:
            found = [self.roles.gather(first)]
            for index, requests in enumerate(rounds[1:], start=1):
                further = msgspec.structs.replace(id_, index=index)
                found.append(self.roles.call(group, method, requests, further))
            return [answer for of_rank in zip(*found, strict=True) for answer in of_rank]

        return first, answers

    def _send_texts(self, group: RoleGroup, batch: Batch) -> list[tuple[int, int]]:
        """Have the owners send all texts to a role's ranks; return each rank's range of rows."""
        # Functions get whole groups: they may compare the responses to a prompt.
        unit = batch.samples if group is self.functions else 1
        runs = shares(batch.num_rows // unit, len(group.ranks))
        parts = [(first * unit, last * unit) for first, last in runs]
        for rank, (first, last) in enumerate(parts):
            senders = batch.owners_of(first, last)
            requests = [
                SendTexts(
                    batch=batch.name(self.roles.rewinds),
                    role=group.name,
                    host=group.ranks[rank].host,
                    port=group.ranks[rank].port,
                    attempt=group.attempt,
                    first=begin,
                    last=end,
                )
                for _, begin, end in senders
            ]
            # The role's attempt is in the id: a restarted role needs the texts again.
            stage = f"{batch.label}/send_texts/{group.name}.{group.attempt}"
            id_ = RequestId(0, batch.step, stage, rank)
            ranks = [owner for owner, _, _ in senders]
            self.roles.call(self.roles.owner, SEND_TEXTS, requests, id_, ranks=ranks)
        return parts


def _failed(group: RoleGroup, failure: NotScored, batch: Batch) -> RewardFailed:
    allowed = "a score for each response, or errorScore or onError: drop in spec.rewards"
    lines = [f"{failure.message}; {allowed}"]
    if failure.row is not None:
        row = batch.prompt_of(failure.row)
        prompt = row.prompt if isinstance(row.prompt, str) else str(row.prompt[-1]["content"])
        lines += excerpt(prompt, failure.response, plain_text(row.ground_truth))
    return RewardFailed(group.name, "\n".join(lines))


def _sum(
    functions: list[RowScore] | None, judged: list[float], model: RewardModel
) -> list[RowScore]:
    """Add both scores; the model's score becomes a further value of the row."""
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
