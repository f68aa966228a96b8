"""The ratio of step times, and what cannot be compared."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def step_speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("step_speed")


def ours(seconds: list[float]) -> str:
    return "".join(
        json.dumps(
            {"step": n, "timing_s/step": s, "timing_s/gen": s / 2, "timing_s/update_actor": s / 4}
        )
        + "\n"
        for n, s in enumerate(seconds, start=1)
    )


def peer(seconds: list[float]) -> str:
    header = json.dumps({"peer": {"trl": "1.16.0"}}) + "\n"
    return header + "".join(
        json.dumps(
            {"step": n, "step_seconds": s, "generate_seconds": s / 2, "update_seconds": s / 2}
        )
        + "\n"
        for n, s in enumerate(seconds, start=1)
    )


def test_the_ratio_is_of_medians_over_the_common_steps_after_the_first(
    step_speed: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "ours").write_text(ours([100.0, 10.0, 14.0, 12.0, 1.0]))
    (tmp_path / "peer").write_text(peer([0.1, 30.0, 48.0, 36.0]))
    claims = tmp_path / "claims"
    arguments = ["--ours", str(tmp_path / "ours"), "--peer", str(tmp_path / "peer")]
    assert step_speed.main([*arguments, "--claims", str(claims)]) == 0
    assert json.loads(claims.read_text()) == {
        "whole step, times as quick as TRL 1.16.0": {
            "value": 3.0,
            "target": 2.5,
            "unit": "x",
            "holds": True,
        }
    }


def test_a_ratio_below_the_target_does_not_hold(step_speed: ModuleType) -> None:
    assert step_speed.STEP_SPEED.entry(2.5)["holds"] is True
    assert step_speed.STEP_SPEED.entry(2.49)["holds"] is False
    assert step_speed.STEP_SPEED.entry(float("nan")) == {
        "value": None,
        "target": 2.5,
        "unit": "x",
        "holds": False,
    }


@pytest.mark.parametrize(
    ("ours_text", "peer_text", "said"),
    [
        (ours([1.0]), peer([1.0, 2.0]), "none in common"),
        (ours([1.0, 0.0]), peer([1.0, 2.0]), "not above 0"),
        ('{"step": 1}\n{"step": 2}\n', peer([1.0, 2.0]), "timing_s/step"),
        ("", peer([1.0, 2.0]), "none in common"),
    ],
)
def test_what_cannot_be_compared_is_said(
    step_speed: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ours_text: str,
    peer_text: str,
    said: str,
) -> None:
    (tmp_path / "ours").write_text(ours_text)
    (tmp_path / "peer").write_text(peer_text)
    arguments = ["--ours", str(tmp_path / "ours"), "--peer", str(tmp_path / "peer")]
    assert step_speed.main([*arguments, "--claims", str(tmp_path / "claims")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "claims").exists()
