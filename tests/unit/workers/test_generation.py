"""What rows ask an engine for."""

from types import SimpleNamespace

import pytest

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.rollout.protocol import Finished, Request
from ppojob_trainer.rpc.messages.rollout import Generate, PromptTokens
from ppojob_trainer.workers.generation import Generation


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


@pytest.mark.parametrize(("ignores", "ends"), [(False, (2, 7, 9)), (True, (7, 9))])
@pytest.mark.parametrize("purpose", ["train", "validation"])
def test_rows_end_where_the_model_or_the_job_says(ignores, ends, purpose) -> None:
    spec = SimpleNamespace(
        seed=1,
        rollout=RolloutSpec(stop_token_ids=(7, 9), ignore_eos=ignores),
        data=SimpleNamespace(max_response_tokens=8),
    )
    engine = OneToken()
    chat = SimpleNamespace(eos_token_ids=(2, 7))
    made = Generation(spec, engine, chat, None, None)
    made.run([Generate(purpose, 1, 0, [PromptTokens(0, [3])], 2, (0, 1))])
    assert [one.sampling.stop_token_ids for one in engine.asked] == [ends] * 2
