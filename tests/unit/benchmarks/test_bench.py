"""No benchmark vanishes: what cannot run stands in the result as not held, with a reason."""

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(benchmark_module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = benchmark_module("bench")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "SCRATCH", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    return module


def benchmark(bench: ModuleType, program: str, **changes: Any) -> Any:
    """One that runs `program` as its only script."""
    (bench.ROOT / "benchmarks" / "trial.py").write_text(program)
    made = bench.Benchmark(
        name="trial",
        commands=((sys.executable, "benchmarks/trial.py"),),
        claims=(bench.Claim("work", "work_p50_us", 150.0, "us"),),
    )
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize(
    ("value", "kept", "holds"),
    [
        (90.0, 90.0, True),
        (150.0, 150.0, True),
        (151.0, 151.0, False),
        (float("nan"), None, False),
    ],
)
def test_a_figure_is_held_against_its_target(bench, value, kept, holds) -> None:
    program = f"print('a table')\nprint('{json.dumps({'work_p50_us': value, 'more': 1})}')"
    (outcome,) = bench.measure(benchmark(bench, program))
    assert outcome.entry == {"value": kept, "target": 150.0, "unit": "us", "holds": holds}
    assert outcome.reason == ""


@pytest.mark.parametrize(
    ("program", "limit", "reason"),
    [
        ("raise SystemExit(3)", 30.0, "exit status 3"),
        ("", 30.0, "no JSON object"),
        ("print('no JSON')", 30.0, "no JSON object"),
        ("print('{}')", 30.0, "lacks work_p50_us"),
        ("import time; time.sleep(60)", 1.0, "not done after 1 s"),
    ],
)
def test_what_cannot_run_is_not_held(bench, program, limit, reason) -> None:
    (outcome,) = bench.measure(benchmark(bench, program, time_limit_seconds=limit))
    assert outcome.entry == {"value": None, "target": 150.0, "unit": "us", "holds": False}
    assert reason in outcome.reason


def test_without_claims_only_a_failure_shows(bench: ModuleType) -> None:
    assert bench.measure(benchmark(bench, "print('{}')", claims=())) == []
    (outcome,) = bench.measure(benchmark(bench, "raise SystemExit(3)", claims=()))
    assert (outcome.name, outcome.entry["holds"]) == ("trial", False)
