import math
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_lines import assert_lines, read_lines

from ppojob_trainer.rewards.results import BadResult, read_result, read_results

EXPECTED = read_lines(Path(__file__).parent / "bad_results.txt")

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


@pytest.mark.parametrize("value", [[1, 3], (1, 3), np.array([1, 3]), torch.tensor([1, 3])])
def test_usable_results_of_a_batch(value: object) -> None:
    assert read_results(value, 2) == [1, 3]


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


NOT_NUMBERS: dict[str, object] = {
    "None": None,
    "text": "1.0",
    "list": [1.0],
    "tuple": (1.0, 2.0),
    "complex": 1j,
    "array": np.array([1.0]),
    "tensor": torch.ones(2),
    "on a GPU": OnGpu(),
    "liar": Liar(),
    "empty dict": {},
    "half a letter": {"\ud83d": 1},
    "no score": {"acc": 1},
    "score None": {"score": None},
    "score in score": {"score": {"score": 1}},
    "list beside": {"score": 1, "parts": [1]},
    "name of a value": {"score": 1, 2: 3},
}
NOT_FINITE: dict[str, object] = {
    "NaN": math.nan,
    "infinite": -math.inf,
    "beyond float32": 1e308,
    "NaN of NumPy": np.float32("nan"),
    "NaN beside": {"score": 1, "acc": math.nan},
}


@pytest.mark.parametrize("name", [*NOT_NUMBERS, *NOT_FINITE])
def test_unusable_results(name: str) -> None:
    with pytest.raises(BadResult) as caught:
        read_result({**NOT_NUMBERS, **NOT_FINITE}[name])
    found = caught.value
    assert found.reason_code == ("NonFiniteReward" if name in NOT_FINITE else "BadRewardResult")
    assert_lines([f"got {found.got}: {found.why}"], EXPECTED[name])


def test_what_is_shown_is_short() -> None:
    with pytest.raises(BadResult) as caught:
        read_result("x" * 10_000)
    assert len(caught.value.got) <= len("str ") + 80
    with pytest.raises(BadResult) as caught:
        read_result(10**400)
    assert len(caught.value.got) <= 80
