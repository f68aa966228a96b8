import logging
import os
from pathlib import Path

import pytest
from golden_lines import assert_lines, read_lines
from reward_functions import Source, item

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.rewards import process
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem, RewardResult

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_batches.txt")
LENGTHS = """
def compute_score(data_sources, solution_strs, ground_truths, extra_infos, factor=1):
    assert len(data_sources) == len(ground_truths) == len(extra_infos) == len(solution_strs)
    most = max(map(len, solution_strs))
    return [
        {"score": factor * len(text), "is_longest": len(text) == most, "row": info["row"]}
        for text, info in zip(solution_strs, extra_infos)
    ]
"""


def scored(spec: RewardSpec, *responses: str) -> list[RewardResult]:
    with ScoringPool([spec]) as pool:
        return pool.score([item(text, n) for n, text in enumerate(responses)])


def batched(source: Source, body: str, **more: object) -> RewardSpec:
    code = f"import os, time\ndef score(solution_strs, **rows):\n    {body}\n"
    return source(code, whole=True, **more)


def test_verls_batch_form_is_called_once(source: Source) -> None:
    spec = source(LENGTHS, whole=True, function="compute_score", arguments={"factor": 2})
    rows = [RewardItem(n, "mine", "x" * n, "t", {"row": n + 7}) for n in range(4)]
    with ScoringPool([spec], processes=2) as pool:
        results = pool.score(rows)
    assert [result.score for result in results] == [0.0, 2.0, 4.0, 6.0]
    assert [result.extras["is_longest"] for result in results] == [0.0, 0.0, 0.0, 1.0]
    assert [result.extras["row"] for result in results] == [7.0, 8.0, 9.0, 10.0]


def test_it_may_be_a_coroutine_beside_functions_of_one_response(source: Source) -> None:
    code = """
        import asyncio
        async def together(solution_strs, response_tokens, finish_reasons, **rows):
            async def one(tokens, reason):
                await asyncio.sleep(0.01)
                return tokens + (100 if reason == "length" else 0)
            return await asyncio.gather(*map(one, response_tokens, finish_reasons))

        def alone(solution_str, **row):
            return {"score": 1, "text": solution_str}
        """
    together = source(code, whole=True, function="together", weight=0.5)
    alone = source(code, whole=True, function="alone", weight=3)
    rows = [
        RewardItem(n, "mine", str(n), "t", {}, response_tokens=n, finish_reason=reason)
        for n, reason in enumerate(("stop", "length", "stop"))
    ]
    for functions in ([together, alone], [alone, together]):
        with ScoringPool(functions) as pool:
            results = pool.score(rows)
        assert [result.score for result in results] == [3.0, 53.5, 4.0]
        assert [result.extras["together/score"] for result in results] == [0.0, 101.0, 2.0]
        assert [result.extras["alone/text"] for result in results] == ["0", "1", "2"]


def test_more_than_one_call_can_take_are_several(source: Source, monkeypatch) -> None:
    monkeypatch.setattr(process, "BATCH_BYTES", 300)
    spec = batched(source, "return [len(solution_strs)] * len(solution_strs)")
    found = scored(spec, *["x" * 80] * 7)
    assert [result.score for result in found] == [2.0] * 6 + [1.0]


BROKEN = {
    "no list": "return 1.0",
    "a dict": "return {'score': [1, 2]}",
    "too few": "return [1.0]",
    "too many": "return [1.0] * 3",
    "a number": "import numpy; return numpy.array(1.0)",
    "raises": "raise KeyError('a')",
    "hangs": "time.sleep(60)",
    "dies": "os._exit(3)",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_call_is_told_with_its_rows(name: str, source: Source) -> None:
    with pytest.raises(RewardFailed) as caught:
        scored(batched(source, BROKEN[name]), "a", "b")
    assert_lines([str(caught.value)], EXPECTED[name])
    assert (caught.value.row, caught.value.response) == (0, "a")  # for the report


def test_a_failed_call_counts_for_all_its_rows_and_a_bad_score_for_one(source, caplog) -> None:
    spec = batched(source, "return [float(text) for text in solution_strs]", errorScore=-1.0)
    with ScoringPool([spec]) as pool, caplog.at_level(logging.WARNING):
        one = pool.score([item(text, n) for n, text in enumerate(("1", "nan", "3"))])
        all_ = pool.score([item(text, n) for n, text in enumerate(("1", "x", "3"))])
    for results, scores in ((one, [1.0, -1.0, 3.0]), (all_, [-1.0] * 3)):
        assert [result.score for result in results] == scores
        assert [result.extras["failed"] for result in results] == [float(s < 0) for s in scores]
    spec = batched(source, "return [float(text) for text in solution_strs]")
    with pytest.raises(RewardFailed, match="row 2: ") as caught:
        scored(spec, "1", "2", "nan")
    assert (caught.value.row, caught.value.response) == (2, "nan")


def test_responses_that_are_left_out_say_so(source: Source) -> None:
    found = scored(source("return float(solution_str)", onError="drop"), "1", "nan", "3")
    assert [result.score for result in found] == [1.0, 0.0, 3.0]
    assert [result.extras["dropped"] for result in found] == [0.0, 1.0, 0.0]


def test_a_function_of_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "def score(solution_str, **row):\n    return float(len(solution_str))\n"
    (tmp_path / "reward_of_a_package.py").write_text(code)
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    given = {"function": "score", "source": {"package": "reward_of_a_package"}}
    with ScoringPool([RewardSpec.model_validate(given)]) as pool:
        assert pool.score([item("abc")])[0].score == 3.0


NOT_LOADED = {"no package": "no.such", "a package without the function": "math"}


@pytest.mark.parametrize("name", NOT_LOADED)
def test_packages_that_cannot_be_used(name: str) -> None:
    given = {"function": "score", "source": {"package": NOT_LOADED[name]}}
    with pytest.raises(ConfigError) as caught:
        ScoringPool([RewardSpec.model_validate(given)])
    assert_lines(caught.value.problems, EXPECTED[name])


def test_every_line_has_its_case() -> None:
    assert EXPECTED.keys() == BROKEN.keys() | NOT_LOADED.keys()
