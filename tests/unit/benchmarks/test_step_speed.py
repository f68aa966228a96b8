"""The ratio of step times, and what cannot be compared."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


@pytest.fixture
def measured(benchmark_module, tmp_path: Path) -> Callable[[str, str], int]:
    """Compare our metrics with a peer's; answers the exit status."""

    def measure(ours: str, peer: str) -> int:
        (tmp_path / "ours").write_text(ours)
        (tmp_path / "peer").write_text(peer)
        arguments = ["--ours", str(tmp_path / "ours"), "--peer", str(tmp_path / "peer")]
        return benchmark_module("step_speed").main(arguments)

    return measure


def ours(seconds: list[float]) -> str:
    return lines(
        {
            "timing_s/step": s,
            "timing_s/gen": s / 2,
            "timing_s/update_actor": s / 4,
            "response_length/mean": 20.0,
        }
        for s in seconds
    )


def peer(seconds: list[float], cpu_share: float = 0.97) -> str:
    header = json.dumps({"peer": {"trl": "1.16.0"}}) + "\n"
    return header + lines(
        {
            "step_seconds": s,
            "generate_seconds": s / 2,
            "update_seconds": s / 2,
            "mean_response_tokens": 21.0,
            "load_average": 0.5,
            "cpu_share": cpu_share,
        }
        for s in seconds
    )


def lines(records: Iterable[dict[str, float]]) -> str:
    return "".join(
        json.dumps({"step": step, **record}) + "\n" for step, record in enumerate(records, 1)
    )


def test_the_ratio_is_of_medians_over_the_common_steps_after_the_first(measured, capsys):
    ours_text = ours([100.0, 10.0, 14.0, 12.0, 1.0])
    assert measured(ours_text, peer([0.1, 30.0, 48.0, 36.0])) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["ratio"] == 3.0
    assert report["steps"] == 3
    assert report["update"]["ratio"] == 6.0
    assert report["whole step"]["worst ratio"] == round(30 / 14, 3)
    assert report["whole step"]["ours"] == {"median": 12.0, "min": 10.0, "max": 14.0}
    assert report["response tokens a row"]["peer"]["median"] == 21.0
