"""No benchmark vanishes: what cannot run stands in the result as not held, with a reason."""

import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("bench")
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
        claims=(bench.RPC_ROUND_TRIP,),
    )
    return dataclasses.replace(made, **changes)


def claiming(name: str) -> str:
    entry = {"value": 90.0, "target": 150.0, "unit": "us", "holds": True}
    return f"open('trial.claims.json', 'w').write('''{json.dumps({name: entry})}''')"


def test_a_claim_comes_through(bench: ModuleType) -> None:
    (outcome,) = bench.measure(benchmark(bench, claiming(bench.RPC_ROUND_TRIP.name)))
    assert (outcome.entry["value"], outcome.entry["holds"], outcome.reason) == (90.0, True, "")


@pytest.mark.parametrize(
    ("program", "limit", "reason"),
    [
        ("raise SystemExit(3)", 30.0, "exit status 3"),
        ("", 30.0, "left no claims"),
        ("open('trial.claims.json', 'w').write('no JSON')", 30.0, "left no claims"),
        ("import time; time.sleep(60)", 1.0, "not done after 1 s"),
    ],
)
def test_what_cannot_run_is_not_held(
    bench: ModuleType, program: str, limit: float, reason: str
) -> None:
    (outcome,) = bench.measure(benchmark(bench, program, time_limit_seconds=limit))
    assert outcome.entry == {"value": None, "target": 150.0, "unit": "us", "holds": False}
    assert reason in outcome.reason


def test_another_claim_does_not_stand_in_for_the_one_wanted(bench: ModuleType) -> None:
    other, wanted = bench.measure(benchmark(bench, claiming("another")))
    assert (other.name, other.entry["holds"]) == ("another", True)
    assert (wanted.name, wanted.entry["holds"]) == (bench.RPC_ROUND_TRIP.name, False)


def test_claims_of_an_earlier_run_are_not_taken(bench: ModuleType) -> None:
    bench.measure(benchmark(bench, claiming(bench.RPC_ROUND_TRIP.name)))
    (outcome,) = bench.measure(benchmark(bench, ""))
    assert outcome.entry["holds"] is False


def test_a_missing_file_is_named_before_anything_runs(bench: ModuleType) -> None:
    missing = {bench.ROOT / "metrics.jsonl": "make demo writes it"}
    (outcome,) = bench.measure(benchmark(bench, "", needs=missing))
    assert "metrics.jsonl: not found; make demo writes it" in outcome.reason


def test_what_a_benchmark_starts_ends_with_it(bench: ModuleType) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
    )
    bench.measure(benchmark(bench, program))
    child = Path("/proc", (bench.ROOT / "child").read_text(), "stat")
    deadline = time.monotonic() + 5
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_name_that_is_not_registered_is_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--only", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
