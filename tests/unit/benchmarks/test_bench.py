"""No benchmark vanishes: what cannot run stands in the result as not held, with a reason."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from patience import eventually

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


def test_figures_of_an_earlier_run_are_not_taken(bench: ModuleType) -> None:
    bench.measure(benchmark(bench, "print('{\"work_p50_us\": 90.0}')"))
    (outcome,) = bench.measure(benchmark(bench, ""))
    assert outcome.entry["holds"] is False


def test_what_a_benchmark_starts_ends_with_it(bench: ModuleType) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
    )
    bench.measure(benchmark(bench, program))
    child = Path("/proc", (bench.ROOT / "child").read_text(), "stat")
    eventually(lambda: not child.exists() or child.read_text().split()[2] == "Z", 5)


def test_a_sigterm_ends_what_was_measured_as_well(tmp_path: Path) -> None:
    bench_folder = Path(__file__).resolve().parents[3] / "benchmarks"
    program = (
        "import sys; import bench; bench.end_by_sigterm(); log = open('log', 'w')\n"
        "bench.ROOT = '.'\n"
        "bench.run_bounded((sys.executable, '-c', 'import os, time; "
        'open("pid", "w").write(str(os.getpid())); time.sleep(600)\'), log, log, 600.0)'
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(bench_folder)},
    )
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
    process.terminate()
    assert process.wait(30) == 143
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()
