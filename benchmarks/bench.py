"""Runs the benchmarks one after the other, prints one table and writes bench.json.

    python benchmarks/bench.py [--run FOLDER] [--only NAME ...] [--output bench.json]

A benchmark is a list of commands; the last line that the last one prints is a JSON object of
figures, some of which carry a claim. What cannot run, runs too long or says nothing stands in the
result as not held, with the reason: nothing is skipped silently. The exit status is 0 where every
claim holds, else 1. What the benchmarks print: .cache/bench/<name>.out and .log.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from ppojob_trainer.processor import has_native_bfloat16

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".cache" / "bench"
PEER_PYTHON = ".venv-trl/bin/python"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure of a benchmark, and the target that its value is held against; `name` is the key."""

    name: str
    figure: str
    target: float
    unit: str
    at_least: bool = False

    def entry(self, value: float | None) -> dict[str, Any]:
        """The entry of bench.json; without a (finite) value the claim does not hold."""
        if value is not None and not math.isfinite(value):
            value = None
        holds = value is not None and (
            value >= self.target if self.at_least else value <= self.target
        )
        return {"value": value, "target": self.target, "unit": self.unit, "holds": holds}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Commands that end in claims.

    Attributes:
        name: how --only calls it.
        commands: run in order from the root of the repository; the first failure ends it.
        claims: which of its figures are held against a target; none: for information.
        time_limit_seconds: for each command.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    claims: tuple[Claim, ...]
    time_limit_seconds: float = 900.0

    @property
    def output(self) -> Path:
        """Standard output of its last command."""
        return SCRATCH / f"{self.name}.out"

    @property
    def log(self) -> Path:
        """Commands and all else that they said."""
        return SCRATCH / f"{self.name}.log"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One entry of bench.json, and why it has no value where it has none."""

    name: str
    entry: Mapping[str, Any]
    reason: str = ""


def script(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, f"benchmarks/{name}.py", *arguments)


SHORT = (
    Benchmark(
        "rpc_round_trip",
        (script("rpc_round_trip"),),
        (
            Claim("RPC round trip of a question, p50", "question_p50_us", 150.0, "us"),
            Claim("RPC round trip of work, p50", "work_p50_us", 150.0, "us"),
        ),
        time_limit_seconds=120.0,
    ),
    Benchmark(
        "sandbox_cost",
        (script("sandbox_cost"),),
        (
            Claim(
                "a program in the sandbox over a bare one, median",
                "restricted_added_p50_ms",
                50.0,
                "ms",
            ),
        ),
    ),
    Benchmark(
        "balance",
        (script("balance"),),
        (
            Claim(
                "work of 8 ranks, long-tailed lengths: largest over mean",
                "max_over_mean",
                1.02,
                "x",
            ),
        ),
    ),
    Benchmark(
        "agent_clock",
        (script("agent_clock"),),
        (
            Claim(
                "phase of 64 conversations, calls of 0.5 s, over the larger of decoding and of "
                "calls alone",
                "latency_ratio",
                1.15,
                "x",
            ),
            Claim(
                "driver of 2,000 conversations, share of the time of a phase",
                "driver_share",
                0.02,
                "x",
            ),
            Claim("memory grown over 50 such phases", "growth_mib", 8.0, "MiB"),
        ),
    ),
    Benchmark("update_phase", (script("update_phase"),), ()),
    Benchmark(
        "two_ranks",
        (script("two_ranks"),),
        (
            Claim(
                "update on two ranks of a thread, times as quick as on one",
                "speedup",
                1.6,
                "x",
                at_least=True,
            ),
        ),
    ),
    Benchmark(
        "one_step_off",
        (script("one_step_off"),),
        (
            Claim("a step drawn ahead over its longer half", "over_longer", 1.1, "x"),
            Claim(
                "engine steps for long-tailed lengths, four steps ahead over one",
                "far_over_one",
                0.4,
                "x",
            ),
            Claim(
                "the same of engines that train by turns, four steps beside one over one alone",
                "beside_over_synchronous",
                0.4,
                "x",
            ),
        ),
    ),
)


def benchmarks(run: Path) -> tuple[Benchmark, ...]:
    """All that is registered, in the order in which it runs."""
    return (*SHORT, long_tail(), step_speed(run))


def long_tail() -> Benchmark:
    """One batch of few long responses: ours, TRL's, and with full logits (20 GB of memory)."""
    autocast = "bfloat16" if has_native_bfloat16() else "none"
    work = ("--work", str(SCRATCH / "long_tail"), "--autocast", autocast)
    names = ("ours", "trl", "full", "given")
    ours, trl, full, given = (str(SCRATCH / f"long_tail-{way}.json") for way in names)
    way, taught = ("--way", "full-logits", "--steps", "1"), ("--given", given)
    return Benchmark(
        "long_tail",
        (
            ("benchmarks/trl_environment.sh",),
            script("long_tail_rows", "--output", str(SCRATCH / "long_tail")),
            script("long_tail_update", *work, "--output", ours),
            (PEER_PYTHON, "benchmarks/long_tail_trl.py", *work, "--output", trl),
            script("long_tail_update", *work, "--output", full, *way),
            script("long_tail_update", *work, "--output", given, "--given-share", "0.6"),
            script("long_tail_ratio", "--ours", ours, "--trl", trl, "--full-logits", full, *taught),
        ),
        (
            Claim(
                "update at 34 % density and a vocabulary of 152k, times as quick as TRL 1.16.0",
                "speedup",
                3.5,
                "x",
                at_least=True,
            ),
            Claim(
                "memory of that update, times less than with full logits",
                "memory_ratio",
                9.0,
                "x",
                at_least=True,
            ),
            Claim(
                "time of that update with 60 % of the responses written by tools, over all trained",
                "given_time",
                0.85,
                "x",
            ),
        ),
    )


def step_speed(run: Path) -> Benchmark:
    """The steps of a run of ours, which `make demo` makes, and the same on TRL."""
    work, peer = str(SCRATCH / "work.jsonl"), str(SCRATCH / "trl.jsonl")
    job, metrics = run / "job.yaml", run / "metrics.jsonl"
    size = ("--steps", "4")
    return Benchmark(
        "step_speed",
        (
            ("benchmarks/trl_environment.sh",),
            script("peer_work", "--job", str(job), *size, "--output", work),
            (PEER_PYTHON, "benchmarks/trl_peer.py", "--work", work, *size, "--output", peer),
            script("step_speed", "--ours", str(metrics), "--peer", peer),
        ),
        (Claim("whole step, times as quick as TRL 1.16.0", "ratio", 2.5, "x", at_least=True),),
    )


def measure(benchmark: Benchmark) -> list[Outcome]:
    """Runs one benchmark; whatever happens, it does not vanish from the result."""
    reason = first_failure(benchmark)
    figures: dict[str, Any] = {}
    if not reason:
        try:
            figures = json.loads(benchmark.output.read_text().splitlines()[-1])
        except (IndexError, ValueError):
            reason = f"its last line is no JSON object of figures; {benchmark.output}"
    if reason and not benchmark.claims:
        nothing = {"value": None, "target": None, "unit": "", "holds": False}
        return [Outcome(benchmark.name, nothing, reason)]
    if not reason:
        print(f"{benchmark.name}: {json.dumps(figures)}")
    outcomes = []
    for claim in benchmark.claims:
        value = figures.get(claim.figure)
        missing = reason or f"its report lacks {claim.figure}; {benchmark.output}"
        outcomes.append(Outcome(claim.name, claim.entry(value), missing if value is None else ""))
    return outcomes


def file_of(command: tuple[str, ...]) -> str:
    """The script that a command runs, below the root of the repository."""
    return next(word for word in command if word.startswith("benchmarks/"))


def first_failure(benchmark: Benchmark) -> str:
    """Runs the commands; the reason of the first that failed, else an empty text."""
    with benchmark.log.open("w") as log:
        for command in benchmark.commands:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            with benchmark.output.open("w") as output:
                reason = run_bounded(command, output, log, benchmark.time_limit_seconds)
            if reason:
                return f"{file_of(command)}: {reason}; {benchmark.log}"
    return ""


def run_bounded(command: tuple[str, ...], output: TextIO, log: TextIO, limit_seconds: float) -> str:
    """Runs a command in a process group of its own and leaves nothing of it behind."""
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=log, start_new_session=True
        )
    except OSError as error:
        return f"cannot be started ({error.strerror})"
    try:
        status = process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        return f"not done after {limit_seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"exit status {status}" if status else ""


def end_by_sigterm() -> None:
    """Leave by an exception, so that what is being measured is ended as well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def table(outcomes: list[Outcome]) -> Table:
    drawn = Table(title="bench")
    for heading in ("claim", "value", "target", "unit", "holds"):
        drawn.add_column(heading, justify="right" if heading in {"value", "target"} else "left")
    for outcome in outcomes:
        numbers = (outcome.entry["value"], outcome.entry["target"])
        value, target = ("-" if number is None else f"{number:g}" for number in numbers)
        holds = "yes" if outcome.entry["holds"] else "NO"
        drawn.add_row(outcome.name, value, target, str(outcome.entry["unit"]), holds)
    return drawn


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--run", type=Path, default=ROOT / "runs" / "addition-grpo", help="run of ours"
    )
    names = [benchmark.name for benchmark in benchmarks(ROOT)]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--output", type=Path, default=ROOT / "bench.json")
    options = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for benchmark in benchmarks(options.run.resolve()):
        if benchmark.name not in options.only:
            continue
        print(f"{benchmark.name} ...", file=sys.stderr, flush=True)
        outcomes += measure(benchmark)
    Console().print(table(outcomes))
    for outcome in outcomes:
        if outcome.reason:
            print(f"{outcome.name}: not measured: {outcome.reason}")
    entries = {outcome.name: dict(outcome.entry) for outcome in outcomes}
    options.output.write_text(json.dumps(entries, indent=2) + "\n")
    return 0 if all(outcome.entry["holds"] for outcome in outcomes) else 1


if __name__ == "__main__":
    end_by_sigterm()
    sys.exit(main())
