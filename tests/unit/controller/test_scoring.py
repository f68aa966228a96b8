import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.roles import RoleGroup
from ppojob_trainer.controller.scoring import RewardModel, Scoring
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import RoleLost
from ppojob_trainer.metrics.step_metrics import Spread
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc.client import Call, Peer
from ppojob_trainer.rpc.messages.scoring import (
    ModelScored,
    RowScore,
    Score,
    ScoreByModel,
    Scored,
    SendTexts,
    Texts,
)
from ppojob_trainer.rpc.messages.training import Advantaged, Advantages
from ppojob_trainer.rpc.methods import ADVANTAGES, PUT_TEXTS, SCORE, SCORE_BY_MODEL, SEND_TEXTS
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing, RequestId, chunks
from ppojob_trainer.workers.reward import RewardWorker, reward_items
from ppojob_trainer.workers.text_inbox import TextInbox

SAMPLES = 3
PROMPTS = [
    PromptRow(number, (1,), f"prompt {number}", "openai/gsm8k", str(number), {"pad": "x" * 400})
    for number in range(5)
]
SPREAD = Spread(0.0, 0.0, 0.0)
NO_ADVANTAGE = Advantaged([], SPREAD, SPREAD, 0.0, [], [])


def batch_of(purpose: str = "train", step: int = 1) -> Batch:
    rows = [RowMetadata(row + 1, row % 3 == 0) for row in range(len(PROMPTS) * SAMPLES)]
    return Batch(purpose, step, PROMPTS, SAMPLES, owners=1, metadata=rows)


def score(scoring: Scoring, batch: Batch) -> None:
    with scoring.start(batch) as finish:
        finish()


@pytest.fixture
def scoring_by(role_of, roles_of, caller_of) -> Callable[..., Scoring]:
    """Scoring by a role; the texts of rows are right answers to every other sample."""

    def make(group: RoleGroup, *, as_model: bool = False) -> Scoring:
        sender = caller_of("actorRollout")

        def send_texts(request: SendTexts) -> Nothing:
            answers = [f"#### {row // SAMPLES + row % 2}" for row in range(len(PROMPTS) * SAMPLES)]
            texts = Texts(request.batch, request.first, answers[request.first : request.last])
            peer = Peer("scorer", request.host, request.port, request.role)
            id_ = RequestId(request.attempt, request.batch.step, "put_texts", request.first)
            sender.call(Call(peer, PUT_TEXTS, texts, id_))
            return Nothing()

        advantages = Route(ADVANTAGES, lambda _: NO_ADVANTAGE)
        owner = role_of("actorRollout", [Route(SEND_TEXTS, send_texts), advantages])
        roles = roles_of(owner, group)
        model = RewardModel(group, 0.0, 1.0, 0.0) if as_model else None
        return Scoring(roles, None if as_model else group, model)

    return make


class Drifting:
    """Says something else whenever it is asked, as an LLM that judges does."""

    def __init__(self) -> None:
        self._draws = itertools.count(1)
        self._inbox = TextInbox()

    def routes(self) -> list[Route]:
        return [Route(PUT_TEXTS, self._inbox.put), Route(SCORE, self.score)]

    def score(self, request: Score) -> Scored:
        rows = [row for item in request.items for row in range(item.first, item.last)]
        return Scored([RowScore(row, float(next(self._draws)), b"{}") for row in rows])


def test_a_reward_is_told_how_long_each_response_is_and_how_it_ended():
    batch, first = batch_of(), SAMPLES - 1
    items = batch.score_items(first, batch.num_rows)
    texts = iter("x" for _ in range(batch.num_rows))
    told = [row for item in items for row in reward_items(item, texts)]
    assert [row.row for row in told] == list(range(first, batch.num_rows))
    assert [row.response_tokens for row in told] == batch.lengths[first:]
    assert [row.finish_reason == "length" for row in told] == batch.truncated[first:]


def test_rows_are_scored_once_though_their_scorer_is_lost(role_of, scoring_by):
    drifting = Drifting()
    reward = role_of("reward", drifting.routes())
    scoring = scoring_by(reward)
    first = {purpose: batch_of(purpose) for purpose in ("train", "validation")}
    for batch in first.values():
        score(scoring, batch)
    again = role_of("reward", drifting.routes(), attempt=2)
    reward.ranks, reward.attempt = again.ranks, 2
    for purpose, batch in first.items():
        repeated = batch_of(purpose)
        score(scoring, repeated)
        assert repeated.scores == batch.scores
        assert repeated.extras == batch.extras
    for step, rewinds in ((2, 0), (1, 1)):
        scoring.roles.rewinds = rewinds
        other = batch_of(step=step)
        score(scoring, other)
        assert not set(other.scores) & set(first["train"].scores)


def test_what_was_said_before_another_role_was_lost_counts(role_of, scoring_by):
    drifting = Drifting()
    scoring = scoring_by(role_of("reward", drifting.routes()))
    with contextlib.suppress(RoleLost), scoring.start(batch_of()):
        raise RoleLost("critic", "it ended")
    again = batch_of()
    score(scoring, again)
    assert again.scores == [float(row + 1) for row in range(again.num_rows)]


def test_scores_that_changed_behind_a_controllers_back_cost_the_step(role_of, scoring_by):
    """It was killed, and so was the scorer: what the owners were told is not to be had again."""
    drifting = Drifting()
    roles = scoring_by(role_of("reward", drifting.routes())).roles
    actor, id_ = roles.group("actorRollout"), RequestId(0, 1, "advantages")
    roles.broadcast(actor, ADVANTAGES, Advantages([0.5], 0.0), id_)
    with pytest.raises(RoleLost, match="advantages of step 1 was repeated with another") as caught:
        roles.broadcast(actor, ADVANTAGES, Advantages([0.25], 0.0), id_)
    assert caught.value.role == "actorRollout"


@pytest.fixture
def pool() -> Iterator[ScoringPool]:
    with ScoringPool([]) as pool:
        yield pool


@pytest.mark.parametrize("chunk_bytes", [1, 1200, 1 << 20])
@pytest.mark.processes
def test_functions_score_portions(role_of, scoring_by, pool, chunk_bytes):
    reward = role_of("reward", RewardWorker(pool).routes(), RewardWorker(pool).routes())
    scoring = scoring_by(reward)
    scoring.chunk_bytes = chunk_bytes
    batch = batch_of()
    score(scoring, batch)
    assert batch.scores == [float(row % 2 == 0) for row in range(batch.num_rows)]


@pytest.mark.parametrize("chunk_bytes", [1, 40, 1 << 20])
def test_a_model_scores_portions_with_all_its_ranks(role_of, scoring_by, chunk_bytes):
    """Each rank is asked as often as the others: they work together."""
    asked: list[list[int]] = []

    def rank() -> list[Route]:
        inbox = TextInbox()
        asked.append([])
        own = asked[-1]

        def judge(request: ScoreByModel) -> ModelScored:
            rows = [row for item in request.items for row in range(item.first, item.last)]
            inbox.take(request.batch, rows)
            own.append(len(rows))
            return ModelScored([float(row) for row in rows])

        return [Route(PUT_TEXTS, inbox.put), Route(SCORE_BY_MODEL, judge)]

    scoring = scoring_by(role_of("reward", *[rank() for _ in range(4)]), as_model=True)
    scoring.chunk_bytes = chunk_bytes
    batch = batch_of()
    score(scoring, batch)
    assert batch.scores == [float(row) for row in range(batch.num_rows)]
    assert len(set(map(len, asked))) == 1
    assert sum(map(sum, asked)) == batch.num_rows


@given(st.lists(st.integers(1, 50)), st.integers(1, 100))
def test_portions_are_runs_that_fit(sizes: list[int], limit: int):
    cuts = chunks(sizes, limit)
    assert [position for cut in cuts for position in range(*cut)] == list(range(len(sizes)))
    for first, last in cuts:
        assert sum(sizes[first:last]) <= limit or last - first == 1
    for (first, _), (_, last) in itertools.pairwise(cuts):
        assert sum(sizes[first:last]) > limit, "as few as can be"
