import math

import numpy as np
import pytest
import torch

from ppojob_trainer.rewards.results import BadResult, read_result

GOOD = [
    (1, 1.0, {}),
    (0.5, 0.5, {}),
    (True, 1.0, {}),
    (-3, -3.0, {}),
    (np.float32(0.5), 0.5, {}),
    (np.int64(2), 2.0, {}),
    (np.array(0.5), 0.5, {}),
    (np.bool_(True), 1.0, {}),
    (torch.tensor(0.5), 0.5, {}),
    ({"score": 1}, 1.0, {}),
    ({"score": np.float64(1), "acc": True, "pred": "8"}, 1.0, {"acc": 1.0, "pred": "8"}),
    ({"score": 1, "note": None}, 1.0, {}),
    ({"score": 1, "long": "x" * 5000}, 1.0, {"long": "x" * 1024}),
    ({"score": 1, "half \ud83d": "\ude00 \u00e9"}, 1.0, {"half \\ud83d": "\\ude00 \u00e9"}),
]


@pytest.mark.parametrize(("value", "score", "extras"), GOOD)
def test_usable_results(value: object, score: float, extras: dict[str, object]) -> None:
    assert read_result(value) == (score, extras)


class Liar:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class OnGpu:
    shape = ()
    is_cuda = True

    def item(self) -> float:
        return 1.0


NUMBER = "a number or a dict with a score"
BAD = [
    (None, "BadRewardResult", "NoneType None", f"not a number: {NUMBER}"),
    ("1.0", "BadRewardResult", "str '1.0'", f"not a number: {NUMBER}"),
    ([1.0], "BadRewardResult", "list [1.0]", f"not a number: {NUMBER}"),
    ((1.0, 2.0), "BadRewardResult", "tuple (1.0, 2.0)", f"not a number: {NUMBER}"),
    (1j, "BadRewardResult", "complex 1j", f"not a number: {NUMBER}"),
    (np.array([1.0]), "BadRewardResult", "ndarray array([1.])", f"not a number: {NUMBER}"),
    (torch.ones(2), "BadRewardResult", "Tensor tensor([1., 1.])", f"not a number: {NUMBER}"),
    (OnGpu(), "BadRewardResult", "a tensor on a GPU", "return result.item() instead"),
    (
        Liar(),
        "BadRewardResult",
        "Liar <Liar whose repr raises RuntimeError>",
        f"not a number: {NUMBER}",
    ),
    ({}, "BadRewardResult", "{}", 'the dict has nothing but no "score"'),
    (
        {"\ud83d": 1},
        "BadRewardResult",
        "{'\\ud83d': 1}",
        'the dict has \\ud83d but no "score"',
    ),
    ({"acc": 1}, "BadRewardResult", "{'acc': 1}", 'the dict has acc but no "score"'),
    ({"score": None}, "BadRewardResult", "NoneType None", 'not a number: "score" is a number'),
    (
        {"score": {"score": 1}},
        "BadRewardResult",
        "dict {'score': 1}",
        'not a number: "score" is a number',
    ),
    (
        {"score": 1, "parts": [1]},
        "BadRewardResult",
        "list [1]",
        "not a number: 'parts' is a number or text",
    ),
    ({"score": 1, 2: 3}, "BadRewardResult", "2", "names of values are text"),
    (math.nan, "NonFiniteReward", "nan", f"not finite in float32: {NUMBER}"),
    (-math.inf, "NonFiniteReward", "-inf", f"not finite in float32: {NUMBER}"),
    (1e308, "NonFiniteReward", "1e+308", f"not finite in float32: {NUMBER}"),
    (np.float32("nan"), "NonFiniteReward", "nan", f"not finite in float32: {NUMBER}"),
    (
        {"score": 1, "acc": math.nan},
        "NonFiniteReward",
        "nan",
        "not finite in float32: 'acc' is a number or text",
    ),
]


@pytest.mark.parametrize(("value", "reason", "got", "why"), BAD)
def test_unusable_results(value: object, reason: str, got: str, why: str) -> None:
    with pytest.raises(BadResult) as caught:
        read_result(value)
    found = caught.value
    assert (found.reason_code, found.got, found.why) == (reason, got, why)


def test_what_is_shown_is_short() -> None:
    with pytest.raises(BadResult) as caught:
        read_result("x" * 10_000)
    assert len(caught.value.got) <= len("str ") + 80
    with pytest.raises(BadResult) as caught:
        read_result(10**400)
    assert len(caught.value.got) <= 80
