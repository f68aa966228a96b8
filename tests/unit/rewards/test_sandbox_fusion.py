import json
from pathlib import Path
from typing import Any

import pytest
from fusion_service import Service

from ppojob_api.v1alpha1.rollout import RewardSpec, SandboxSpec
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.http_calls import CallFailed
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem
from ppojob_trainer.rewards.unit_tests import code
from ppojob_trainer.sandbox.fusion import FusionSandbox
from ppojob_trainer.sandbox.process import Limits

pytestmark = pytest.mark.processes

TABLE = Path(__file__).parent / "prime_code_scores.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
SUMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
ADD = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
RIGHT = {"score": 1.0, "acc": 1.0, "over_time": 0.0, "not_python": 0.0}


@pytest.fixture
def sandbox(service: Service) -> FusionSandbox:
    return FusionSandbox(service.url, Limits(20.0, 256 << 20))


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: str(case["case"]))
def test_scores_are_those_of_our_own_sandbox(case: dict[str, Any], sandbox: FusionSandbox) -> None:
    found = code(str(case["response"]), str(case["ground_truth"]), sandbox)
    assert found["score"] == pytest.approx(case["here"], abs=1e-9)


def test_what_is_asked_is_verls_request_without_what_is_expected(service, sandbox) -> None:
    truth = {"inputs": ["1 2\n"], "outputs": ["31415926\n"]}
    service.answers = [504]  # it is asked again
    assert code(ADD, truth, sandbox)["score"] == 0.0
    _, asked = service.asked
    program = asked.pop("code")
    assert asked == {
        **{"language": "python", "stdin": "1 2\n", "memory_limit_MB": 256},
        **{"compile_timeout": 20.0, "run_timeout": 20.0, "files": {}, "fetch_files": []},
    }
    assert "31415926" not in program


def test_a_function_answers_behind_what_it_prints(sandbox: FusionSandbox) -> None:
    truth = {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}
    assert code("def add(a, b):\n    print(99)\n    return a + b", truth, sandbox) == RIGHT
    assert code("class Solution:\n    def add(self, a, b): return a + b", truth, sandbox) == RIGHT
    # What it prints in the form of an answer is none, as it does not know the nonce.
    lie = "import json\nprint(json.dumps(3))\ndef add(a, b): raise SystemExit"
    assert code(lie, truth, sandbox)["score"] == 0.0


def test_how_programs_end(service: Service) -> None:
    sandbox = FusionSandbox(service.url, Limits(2.0, 256 << 20))
    assert code("while True: pass", SUMS, sandbox) == {**RIGHT, "score": 0.0, "acc": 0.0,
                                                       "over_time": 1.0}  # fmt: skip
    assert code("prose is no code", SUMS, sandbox)["not_python"] == 1.0
    assert code("raise ValueError", SUMS, sandbox)["score"] == 0.0
    assert code(f"{ADD[10:-3]}\nimport sys; sys.exit(5)", SUMS, sandbox) == RIGHT


NO_VERDICT = {
    "its own error": {"status": "SandboxError", "message": "no room", "run_result": None},
    "no result": {"status": "Success", "message": ""},
    "a list": [],
}


@pytest.mark.parametrize("name", NO_VERDICT)
def test_what_the_service_could_not_do_is_no_wrong_answer(name, service, sandbox) -> None:
    service.answers = [NO_VERDICT[name]]
    with pytest.raises(CallFailed, match="/run_code ran nothing: "):
        code(ADD, SUMS, sandbox)


def test_a_job_says_where_code_runs(service: Service) -> None:
    reward = RewardSpec.model_validate({"function": "code"})
    truth = {"inputs": list(SUMS["inputs"]), "outputs": list(SUMS["outputs"])}
    row = RewardItem(0, "mine", ADD, truth)
    with ScoringPool([reward], sandbox=SandboxSpec(url=service.url)) as pool:
        (result,) = pool.score([row])
        assert (result.score, len(service.asked)) == (1.0, 2)
        service.answers = [{"status": "SandboxError", "message": "no room"}]
        with pytest.raises(RewardFailed, match="ran nothing: SandboxError: no room"):
            pool.score([row])
