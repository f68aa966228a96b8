"""How much quicker a whole step of ours is than TRL's: the ratio of medians over the same steps.

    python benchmarks/step_speed.py --ours RUN/metrics.jsonl --peer trl.jsonl

The first step is left out on both sides (warm-up), and only steps that both ran are compared, so
that both are as far in the training. A ratio says little where the machine was busy or the work
differed: spread, load averages and response tokens stand beside it. The last line is all of it as
one JSON object, which `bench.py` reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, float]
STAGES = {
    "whole step": ("timing_s/step", "step_seconds"),
    "generate": ("timing_s/gen", "generate_seconds"),
    "update": ("timing_s/update_actor", "update_seconds"),
}
"""Stage -> our metric, the peer's."""
LEAST_CPU_SHARE = 0.6
"""Share of its threads that the peer must have got; below, the machine was busy with other work."""


def read_steps(path: Path) -> dict[int, Line]:
    """Lines with a step number; other lines (a header) are passed over."""
    records = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]
    return {record["step"]: record for record in records if "step" in record}


def common_steps(ours: Mapping[int, Line], peer: Mapping[int, Line]) -> list[int]:
    """Step numbers that both ran, without either side's first."""
    common = sorted((set(ours) - {min(ours, default=0)}) & (set(peer) - {min(peer, default=0)}))
    if not common:
        sys.exit(
            f"steps: got {sorted(ours)} of ours and {sorted(peer)} of the peer: none in common "
            "after the first; run both for at least 2"
        )
    return common


def figure_of(lines: Sequence[Line], key: str) -> list[float]:
    return [line[key] for line in lines]


def refuse_a_busy_machine(peer: Sequence[Line]) -> None:
    """Other work slows threads that wait for each other far beyond its own share."""
    share = statistics.median(figure_of(peer, "cpu_share"))
    if share < LEAST_CPU_SHARE:
        sys.exit(
            f"cpu_share: got {share} of the peer's threads: the machine was busy with other work, "
            f"which flatters us; run it again with at least {LEAST_CPU_SHARE}"
        )


def compare(ours: list[float], peer: list[float]) -> dict[str, Any]:
    """Ratios of the seconds of a stage, above 1 where ours is quicker; medians and spread."""
    return {
        "ratio": round(statistics.median(peer) / statistics.median(ours), 3),
        "worst ratio": round(min(peer) / max(ours), 3),  # the peer's quickest over our slowest
        "ours": summary(ours),
        "peer": summary(peer),
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in named.items()}


def figures(ours: Sequence[Line], peer: Sequence[Line]) -> dict[str, Any]:
    """Ratio, medians, spread, load and work of both sides, over the same steps."""
    stages = {
        stage: compare(figure_of(ours, our_key), figure_of(peer, peer_key))
        for stage, (our_key, peer_key) in STAGES.items()
    }
    return {
        "ratio": stages["whole step"]["ratio"],
        **stages,
        "steps": len(ours),
        "peer's load average": summary(figure_of(peer, "load_average")),
        "peer's share of its threads": summary(figure_of(peer, "cpu_share")),
        "response tokens a row": {
            "ours": summary(figure_of(ours, "response_length/mean")),
            "peer": summary(figure_of(peer, "mean_response_tokens")),
        },
    }


def table(report: Mapping[str, Any]) -> str:
    def spread(of: Mapping[str, float]) -> str:
        return f"{of['median']:.2f} ({of['min']:.2f} to {of['max']:.2f})"

    rows = [f"{'stage':<12}{'ours, s':>26}{'TRL, s':>26}{'ratio':>8}{'worst':>8}"]
    for stage in STAGES:
        found = report[stage]
        rows.append(
            f"{stage:<12}{spread(found['ours']):>26}{spread(found['peer']):>26}"
            f"{found['ratio']:>8.2f}{found['worst ratio']:>8.2f}"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ours", required=True, type=Path, help="metrics.jsonl of our run")
    parser.add_argument("--peer", required=True, type=Path, help="output of trl_peer.py")
    options = parser.parse_args()
    all_ours, all_peer = read_steps(options.ours), read_steps(options.peer)
    steps = common_steps(all_ours, all_peer)
    ours, peer = [all_ours[step] for step in steps], [all_peer[step] for step in steps]
    refuse_a_busy_machine(peer)
    report = figures(ours, peer)
    print(table(report))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
