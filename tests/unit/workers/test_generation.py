from types import SimpleNamespace

import pytest

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.errors import GenerationAborted
from ppojob_trainer.rollout.protocol import Finished, FinishReason, Request
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rpc.messages.rollout import OF_DATA, AskRowsDrawn, Generate, PromptTokens
from ppojob_trainer.workers.generation import Generation, generation_result


class OneToken:
    """An engine that answers each request with one token, and keeps the requests."""

    policy_version = 0

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self._new: list[Request] = []

    def submit(self, request: Request) -> None:
        self._new.append(request)

    def step(self) -> list[Finished]:
        ended, self._new = self._new, []
        self.asked += ended
        return [Finished(one.request_id, (5,), (-1.0,), "stop", 0) for one in ended]

    def has_work(self) -> bool:
        return bool(self._new)

    def reset_cache(self) -> None: ...


def generation(engine: OneToken, rollout: RolloutSpec | None = None) -> Generation:
    spec = SimpleNamespace(
        seed=1, rollout=rollout or RolloutSpec(), data=SimpleNamespace(max_response_tokens=8)
    )
    return Generation(spec, engine, SimpleNamespace(eos_token_ids=(2, 7)), None, None)


class Aborted(OneToken):
    """An engine that ends one request a step; the controller aborts the phase meanwhile."""

    made: Generation
    _reason: FinishReason = "stop"

    def step(self) -> list[Finished]:
        self.made.progress.report(AskRowsDrawn(aborts=True))
        ended, self._new = self._new[:1], self._new[1:]
        return [Finished(one.request_id, (5,), (-1.0,), self._reason, 0) for one in ended]

    def abort(self, request_id: str) -> None:
        self._reason = "abort"


@pytest.mark.parametrize("purpose", ["train", "validation"])
def test_only_a_validation_is_aborted(purpose) -> None:
    engine = Aborted()
    engine.made = generation(engine)
    batch = Generate(purpose, 1, 0, [PromptTokens(0, [3])], 3, (0, 1))
    if purpose == "validation":
        with pytest.raises(GenerationAborted):
            engine.made.run([batch])
    else:
        (rows,) = engine.made.run([batch])
        assert len(rows.trajectories) == 3
    assert not engine.has_work()


@pytest.mark.parametrize(("ignores", "ends"), [(False, (2, 7, 9)), (True, (7, 9))])
@pytest.mark.parametrize("purpose", ["train", "validation"])
def test_rows_end_where_the_model_or_the_job_says(ignores, ends, purpose) -> None:
    engine = OneToken()
    made = generation(engine, RolloutSpec(stop_token_ids=(7, 9), ignore_eos=ignores))
    made.run([Generate(purpose, 1, 0, [PromptTokens(0, [3])], 2, (0, 1))])
    assert [one.sampling.stop_token_ids for one in engine.asked] == [ends] * 2


def test_given_responses_take_the_place_of_the_first_samples() -> None:
    """What is drawn beside them is drawn as it would be without them."""
    whole, cut = [4, 4, 4, 4, 4, 4, 4, 2], [4] * 8
    prompts = [PromptTokens(0, [3], given=[[5, 2], whole]), PromptTokens(1, [3], given=[cut])]
    plain, engine = OneToken(), OneToken()
    without = [PromptTokens(0, [3]), PromptTokens(1, [3])]
    generation(plain).run([Generate("train", 1, 0, without, 4, (0, 2))])
    (made,) = generation(engine).run([Generate("train", 1, 0, prompts, 4, (0, 2))])
    assert len(plain.asked) == 8
    assert engine.asked == [plain.asked[row] for row in (2, 3, 5, 6, 7)]
    given = [
        Trajectory((Segment(tuple(tokens), (), OF_DATA),), reason)
        for tokens, reason in (([5, 2], "stop"), (whole, "stop"), (cut, "length"))
    ]
    assert [made.trajectories[row] for row in (0, 1, 4)] == given
    assert all(sum(one.given) == 0 for n, one in enumerate(made.trajectories) if n not in (0, 1, 4))
    told = generation_result([made])
    assert [row.length for row in told.rows] == [2, 8, 1, 1, 8, 1, 1, 1]
    assert [row.versions for row in told.rows[:3]] == [{OF_DATA: 2}, {OF_DATA: 8}, {0: 1}]


def test_a_step_whose_rows_are_all_given_asks_no_engine() -> None:
    """Those that this rank's engine draws, of rows that others draw."""
    engine = OneToken()
    (made,) = generation(engine).run(
        [Generate("train", 1, 0, [PromptTokens(0, [3], given=[[2]])], 1, (0, 1))]
    )
    assert [one.tokens for one in made.trajectories] == [[2]]
    assert engine.asked == []


def test_people_are_told_of_a_row_by_its_step_or_by_its_round_in_the_run() -> None:
    """By which a round is named that was drawn before it was known which step takes it."""
    of_step = Generate("train", 3, 0, [PromptTokens(7, [3])], 2, (0, 1), round=1)
    numbered = Generate("train", 9, 0, [PromptTokens(7, [3])], 2, (0, 1), number=9)
    made = generation(OneToken())
    told = [row.place for batch in (of_step, numbered) for row in made.rows(batch)]
    assert told[1::2] == ["train step 3, prompt 7, sample 1", "train round 9, prompt 7, sample 1"]
