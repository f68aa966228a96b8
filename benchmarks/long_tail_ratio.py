"""How much quicker, and how much smaller, our update is on the batch of `long_tail_rows.py`.

    python benchmarks/long_tail_ratio.py --ours FILE --trl FILE --full-logits FILE --given FILE

The files are those of `long_tail_update.py` and `long_tail_trl.py`; `given` is ours with 60 %
of the responses written by tools. Prints one line of JSON.
Refused where TRL got too little of its threads (the machine was busy, which flatters us) or where
the norms of the gradients say that the work was not the same. It loads neither torch nor ours, for
TRL's side reads the batch by it too.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from step_speed import LEAST_CPU_SHARE

LEARNING_RATE = 1e-6
"""Of both: small, so that each repetition does nearly the same work on the same weights."""
SAME_WORK = 0.02
"""Relative distance of the norms; bfloat16 products in another order differ by less."""


def rows_file(folder: Path) -> Path:
    return folder / "rows.jsonl"


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """One dict a row: group, prompt and response token ids, reward."""
    return [json.loads(line) for line in rows_file(folder).read_text().splitlines()]


def problems(reports: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    if reports["trl"]["cpu_share"] < LEAST_CPU_SHARE:
        found.append(f"cpu_share: got {reports['trl']['cpu_share']} of TRL's threads: too busy")
    ours = reports["ours"]["grad_norm"]
    for name in ("trl", "full_logits"):
        report = reports[name]
        if abs(report["grad_norm"] / ours - 1.0) > SAME_WORK:
            found.append(f"grad_norm of {name}: got {report['grad_norm']}: ours is {ours}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("ours", "trl", "full-logits", "given"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    reports: dict[str, dict[str, Any]] = {
        name: json.loads(path.read_text()) for name, path in vars(options).items()
    }
    if found := problems(reports):
        print("\n".join(found), file=sys.stderr)
        return 2
    speed = reports["ours"]["real_tokens_per_second"] / reports["trl"]["real_tokens_per_second"]
    memory = reports["full_logits"]["extra_gib"] / reports["ours"]["extra_gib"]
    given = reports["given"]["median_seconds"] / reports["ours"]["median_seconds"]
    ratios = {"speedup": speed, "memory_ratio": memory, "given_time": given}
    print(json.dumps({**{name: round(ratio, 2) for name, ratio in ratios.items()}, **reports}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
