"""Reward worker: receives response texts from the ranks that own them, and scores them.

It has no model, no GPU, and a key without permission to command others, since it runs user code, in
child processes with a time limit.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ppojob_api import contract
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment, variables_of_code
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem
from ppojob_trainer.rewards.wire import Judge, NotScored
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.scoring import RowScore, Score, Scored, ScoreItem
from ppojob_trainer.rpc.methods import PUT_TEXTS, SCORE
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.workers.judge_router import JudgeRouter
from ppojob_trainer.workers.text_inbox import TextInbox

_log = logging.getLogger(__name__)


class RewardWorker:
    """Handles `put_texts` and `score`."""

    def __init__(self, pool: ScoringPool) -> None:
        self._pool = pool
        self._inbox = TextInbox()

    def routes(self) -> list[Route]:
        return [Route(PUT_TEXTS, self._inbox.put), Route(SCORE, self._score)]

    def _score(self, request: Score) -> Scored:
        rows = [row for item in request.items for row in range(item.first, item.last)]
        texts = iter(self._inbox.take(request.batch, rows))
        items = [answer for item in request.items for answer in reward_items(item, texts)]
        try:
            results = self._pool.score(items)
        except RewardFailed as failure:
            # Not raised: a repeated request must get the same answer, without the texts.
            _log.error("%s", failure)
            message = f"{type(failure).__name__}: {failure}"
            return Scored([], NotScored(message, failure.row, failure.response))
        return Scored(
            [
                RowScore(item.row, result.score, msgspec.json.encode(result.extras, order="sorted"))
                for item, result in zip(items, results, strict=True)
            ]
        )


def reward_items(item: ScoreItem, responses: Iterator[str]) -> list[RewardItem]:
    """Build the reward items of a prompt's rows."""
    truth = msgspec.json.decode(item.ground_truth)
    info = msgspec.json.decode(item.extra_info)
    figures = [msgspec.json.decode(own) for own in item.figures] or [{}] * len(item.lengths)
    return [
        RewardItem(
            row,
            item.data_source,
            next(responses),
            truth,
            info | own,
            response_tokens=length,
            finish_reason="length" if is_truncated else "stop",
            prompt=item.first,
        )
        for row, length, is_truncated, own in zip(
            range(item.first, item.last), item.lengths, item.truncated, figures, strict=True
        )
    ]


@contextmanager
def open_reward_worker(
    environment: PodEnvironment, _rank: RankEnvironment, _keys: KeyRing
) -> Iterator[RewardWorker]:
    """Open the worker and its processes, which end with the block."""
    spec = environment.config.spec
    with (
        _judge(environment) as judge,
        ScoringPool(
            spec.rewards,
            sandbox=spec.sandbox,
            processes=spec.roles.reward.cpu,
            variables=variables_of_code("reward"),
            judge=judge,
        ) as pool,
    ):
        yield RewardWorker(pool)


@contextmanager
def _judge(environment: PodEnvironment) -> Iterator[Judge | None]:
    """Yield the access of reward functions to the job's judge; its router ends with the block."""
    spec = environment.config.spec
    if spec.judge is None:
        yield None
        return
    pods = environment.config.topology.role("judge").pods
    servers = [(environment.host(pod.host), contract.PORT_JUDGE) for pod in pods]
    patience = spec.timeouts.startup_seconds
    router = JudgeRouter(servers, model=spec.judge.path, patience=patience)
    router.start()
    try:
        yield Judge(f"http://127.0.0.1:{router.port}/v1", spec.judge.path, patience)
    finally:
        router.close()
