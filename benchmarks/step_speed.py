"""How much quicker a whole step of ours is than TRL's: the ratio of medians over the same steps.

    python benchmarks/step_speed.py --ours RUN/metrics.jsonl --peer trl.jsonl [--claims FILE]

The first step is left out on both sides (warm-up), and only steps that both ran are compared, so
that both are as far in the training. A ratio says little where the machine was busy or the work
differed: spread, load averages and response tokens stand beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from claims import Claim, write_claims

STEP_SPEED = Claim("whole step, times as quick as TRL 1.16.0", 2.5, "x", at_least=True)

Line = Mapping[str, float]
STAGES: dict[str, tuple[Callable[[Line], float], Callable[[Line], float]]] = {
    "whole step": (lambda ours: ours["timing_s/step"], lambda peer: peer["step_seconds"]),
    "generate": (lambda ours: ours["timing_s/gen"], lambda peer: peer["generate_seconds"]),
    "update": (lambda ours: ours["timing_s/update_actor"], lambda peer: peer["update_seconds"]),
}


class UnusableError(ValueError):
    """The measurements cannot be compared; the text says where, what and why."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Seconds of one stage on both sides, step by step.

    Attributes:
        ours: seconds of our steps.
        peer: seconds of the peer's steps, of the same step numbers.
    """

    ours: tuple[float, ...]
    peer: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Peer's median over ours: above 1 means that ours is quicker."""
        return statistics.median(self.peer) / statistics.median(self.ours)

    @property
    def worst_ratio(self) -> float:
        """The peer's quickest step over our slowest."""
        return min(self.peer) / max(self.ours)


def read_steps(path: Path) -> dict[int, Line]:
    """Lines with a step number; other lines (a header) are passed over."""
    if not path.is_file():
        raise UnusableError(f"{path}: not found: nothing was measured; run it first")
    records = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]
    return {record["step"]: record for record in records if "step" in record}


def compare(ours: Mapping[int, Line], peer: Mapping[int, Line]) -> dict[str, Comparison]:
    """Stage -> seconds over the steps that both ran, without each side's first."""
    common = sorted((set(ours) - {min(ours, default=0)}) & (set(peer) - {min(peer, default=0)}))
    if not common:
        raise UnusableError(
            f"steps: got {sorted(ours)} of ours and {sorted(peer)} of the peer: none in common "
            "after the first; run both for at least 2"
        )
    comparisons = {}
    for stage, (of_ours, of_peer) in STAGES.items():
        try:
            seconds = Comparison(
                tuple(of_ours(ours[step]) for step in common),
                tuple(of_peer(peer[step]) for step in common),
            )
        except KeyError as missing:
            raise UnusableError(
                f"{stage}: got no {missing} in every step: not comparable"
            ) from None
        if not all(math.isfinite(s) and s > 0 for s in (*seconds.ours, *seconds.peer)):
            raise UnusableError(f"{stage}: got a time that is not above 0: not a measurement")
        comparisons[stage] = seconds
    return comparisons


def report(comparisons: Mapping[str, Comparison], peer: Mapping[int, Line]) -> str:
    def spread(values: tuple[float, ...]) -> str:
        low, middle, high = min(values), statistics.median(values), max(values)
        return f"{middle:8.2f} ({low:.2f} to {high:.2f})"

    rows = [f"{'stage':<12}{'ours, s':>26}{'TRL, s':>26}{'ratio':>8}{'worst':>8}"]
    for stage, seconds in comparisons.items():
        rows.append(
            f"{stage:<12}{spread(seconds.ours):>26}{spread(seconds.peer):>26}"
            f"{seconds.ratio:>8.2f}{seconds.worst_ratio:>8.2f}"
        )
    loads = [line["load_average"] for line in peer.values() if "load_average" in line]
    steps = len(comparisons["whole step"].ours)
    load = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not recorded"
    rows.append(f"medians over {steps} steps; load average during TRL's run: {load}")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ours", required=True, type=Path, help="metrics.jsonl of our run")
    parser.add_argument("--peer", required=True, type=Path, help="output of trl_peer.py")
    parser.add_argument("--claims", type=Path, help="where bench.py reads the result")
    options = parser.parse_args(arguments)
    try:
        ours, peer = read_steps(options.ours), read_steps(options.peer)
        comparisons = compare(ours, peer)
    except UnusableError as problem:
        print(problem, file=sys.stderr)
        return 2
    print(report(comparisons, peer))
    ratio = round(comparisons["whole step"].ratio, 3)
    if options.claims:
        write_claims(options.claims, {STEP_SPEED: ratio})
    print(f"{STEP_SPEED.name}: {ratio} (target {STEP_SPEED.target})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
