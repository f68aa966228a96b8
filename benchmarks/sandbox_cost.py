"""What the sandbox costs a program, beside an interpreter that is started bare.

    python benchmarks/sandbox_cost.py [--runs 40]

A bare interpreter and each level of this machine take turns with an empty program, so that all see
the same machine. Prints one JSON object: medians in milliseconds, and for each level how much more
its median is.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from ppojob_trainer.sandbox.executor import Sandbox, SandboxRefused
from ppojob_trainer.sandbox.levels import Level, supported_isolation
from ppojob_trainer.sandbox.process import Program

EMPTY = "pass"


def bare() -> object:
    """The same interpreter with pipes, and nothing around it."""
    return subprocess.run([sys.executable, "-c", EMPTY], capture_output=True, input=b"", check=True)


def ways() -> dict[str, Callable[[], object]]:
    """What is measured."""
    found: dict[str, Callable[[], object]] = {"bare": bare}
    isolation = supported_isolation()
    for level in (Level.RESTRICTED, Level.NAMESPACES):
        given = isolation.without_namespaces("") if level == Level.RESTRICTED else isolation
        try:
            sandbox = Sandbox(least=level, isolation=given)
        except SandboxRefused as refused:
            sys.stderr.write(f"{refused}\n")
            continue
        found[level.name.lower()] = lambda sandbox=sandbox: sandbox.run(Program(EMPTY))
    return found


def measure(runs: int) -> dict[str, float]:
    """Medians of all, and what each level adds."""
    measured = ways()
    taken: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(runs):
        for name, run in measured.items():
            start = time.perf_counter()
            run()
            taken[name].append(1_000 * (time.perf_counter() - start))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    figures = {f"{name}_p50_ms": value for name, value in medians.items()}
    for name, value in medians.items():
        if name != "bare":
            figures[f"{name}_added_p50_ms"] = value - medians["bare"]
    return {name: round(figure, 2) for name, figure in figures.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=40)
    print(json.dumps(measure(parser.parse_args().runs)))
