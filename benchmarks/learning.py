"""Whether the task of `make demo` is learned by each of seven algorithms.

    python benchmarks/learning.py run [--only NAME ...]    # train them, one after the other
    python benchmarks/learning.py draw                     # picture and table of what was recorded

`run` keeps reward and accuracy of each run in docs/pictures/learning.json, and passes over those
that are there; the runs themselves are thrown away. `draw` makes docs/pictures/learning.svg and the
table of docs/algorithms.md of it. The model and the data are those that `make demo` makes.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
sys.path.insert(0, str(PICTURES))

import draw_run  # noqa: E402

RECORD = PICTURES / "learning.json"
PICTURE = PICTURES / "learning.svg"
PAGE = ROOT / "docs" / "algorithms.md"
TABLE = re.compile(r"(?<=<!-- learning: begin -->\n).*(?=<!-- learning: end -->)", re.DOTALL)

STEPS = {
    **{"grpo": 16, "rloo": 16, "reinforce_plus_plus": 16, "remax": 16},
    **{"gspo": 8, "cispo": 6, "DAPO": 6},
}
"""Of each run: fewer where a step has two updates."""
BATCH = {"promptsPerStep": 8, "samplesPerPrompt": 8}
TWO_UPDATES = {"miniBatchPrompts": 4}
"""Without them a step has one update, at which every ratio is 1 and every policy loss the same."""
SECTIONS = {
    "checkpoint": {"export": False},
    "loggers": [],
    "numExamine": 0,
    # A machine that has other work too takes its time.
    "timeouts": {"livenessSeconds": 300},
}
"""What is other than in examples/addition-grpo.yaml, beside algorithm and steps."""
ENDS = 3
"""Steps whose mean is told of a run's beginning and of its end."""


def algorithms() -> dict[str, dict[str, Any]]:
    """`spec.algorithm` of each run."""
    gspo = {"policyLoss": {"type": "gspo"}, "lossAggregation": "sequence_mean_token_mean"}
    dapo = {**_recipe("DAPO"), "overlongPenalty": {"bufferTokens": 8}}
    return {
        "grpo": {"type": "grpo", **BATCH},
        "rloo": {"type": "rloo", **BATCH},
        "reinforce_plus_plus": {"type": "reinforce_plus_plus", **BATCH},
        "remax": {"type": "remax", **BATCH},
        "gspo": {"type": "grpo", **BATCH, **TWO_UPDATES, **gspo},
        "cispo": {"type": "grpo", **BATCH, **TWO_UPDATES, "policyLoss": {"type": "cispo"}},
        "DAPO": {**dapo, **BATCH, **TWO_UPDATES},
    }


def _recipe(name: str) -> dict[str, Any]:
    """`spec.algorithm` of a recipe in docs/recipes.md."""
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {name}\n.*?```yaml\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return dict(YAML(typ="safe").load(found[1])["algorithm"])


def manifest(name: str) -> dict[str, Any]:
    """The demo's job with another algorithm."""
    job = YAML(typ="safe").load((ROOT / "examples" / "addition-grpo.yaml").read_text())
    job["metadata"]["name"] = name.lower().replace("_", "-")
    steps = {"total": STEPS[name], "validateFirst": True, "validateLast": True}
    job["spec"].update(SECTIONS, algorithm=algorithms()[name], steps=steps)
    return dict(job)


def train(name: str) -> dict[str, Any]:
    """Run a job; what is kept of it."""
    with tempfile.TemporaryDirectory(prefix="learning-") as top:
        file, output = Path(top) / "job.yaml", Path(top) / "run"
        YAML(typ="safe").dump(manifest(name), file)
        command = [sys.executable, "-m", "ppojob_cli", "run", file, "--plain", "--output", output]
        subprocess.run(command, cwd=ROOT, check=True)
        text = (output / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    accuracy = draw_run.accuracy_name(lines)
    assert accuracy is not None
    return {
        "algorithm": algorithms()[name],
        "reward": _points(lines, "critic/score/mean"),
        "accuracy": _points(lines, accuracy),
    }


def _points(lines: list[dict[str, Any]], name: str) -> list[list[float]]:
    return [[step, round(value, 4)] for step, value in draw_run.read_curve(lines, name).points]


def read_record() -> dict[str, Any]:
    """What was recorded, by the names of the runs."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else {}


def write_record(record: dict[str, Any]) -> None:
    """A line a run, in the order of `algorithms`."""
    lines = [f'"{name}": {json.dumps(record[name])}' for name in algorithms() if name in record]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def table(record: dict[str, Any]) -> str:
    """What each run reached, as Markdown."""
    lines = [
        f"| | steps | reward, first {ENDS} | last {ENDS} | held-out accuracy before | after |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, run in record.items():
        rewards = [value for _, value in run["reward"]]
        first, last = (sum(part) / ENDS for part in (rewards[:ENDS], rewards[-ENDS:]))
        before, after = (run["accuracy"][at][1] for at in (0, -1))
        told = " | ".join(f"{value:.2f}" for value in (first, last, before, after))
        lines.append(f"| {title(name)} | {len(rewards)} | {told} |")
    return "\n".join([*lines, ""])


def title(name: str) -> str:
    """A run's name for readers: that of a field's value, or of a recipe."""
    return f"{name}, the recipe" if name.isupper() else f"`{name}`"


def draw(record: dict[str, Any]) -> str:
    """A panel a run."""
    columns, width, height = 4, 720, 404
    parts = []
    for index, (name, run) in enumerate(record.items()):
        row, column = divmod(index, columns)
        panel = draw_run.Panel(
            top=96 + 160 * row,
            height=104,
            low=0.0,
            high=1.0,
            last_step=run["reward"][-1][0],
            left=44 + 170 * column,
            width=140,
        )
        parts += _panel(panel, title(name).strip("`"), run)
    heading = "SmolLM2-135M learns the sum of three digits"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{heading}">',
            f"<style>{draw_run.STYLE}</style>",
            f'<text class="title" x="44" y="26">{heading}</text>',
            '<text class="name-reward" x="44" y="50">mean reward of the samples</text>',
            '<text class="name-accuracy" x="258" y="50">held-out accuracy, greedy</text>',
            *parts,
            f'<text x="{width / 2:g}" y="{height - 10}" text-anchor="middle">step</text>',
            "</svg>",
            "",
        ]
    )


def _panel(panel: draw_run.Panel, name: str, run: dict[str, Any]) -> list[str]:
    reward, accuracy = (draw_run.Curve(run[key]) for key in ("reward", "accuracy"))
    return [
        f'<text x="{panel.left}" y="{panel.top - 24}">{escape(name)}</text>',
        *panel.axis([0.0, 0.5, 1.0]),
        panel.line(reward, "reward"),
        *draw_run.accuracy_with_values(panel, accuracy),
        *panel.steps_axis(4),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train them, one after the other")
    run.add_argument("--only", nargs="+", choices=[*algorithms()], help="these, anew")
    commands.add_parser("draw", help="write picture and table of what was recorded")
    given = parser.parse_args()
    if given.command == "draw":
        record, page = read_record(), PAGE.read_text(encoding="utf-8")
        PICTURE.write_text(draw(record), encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda _: table(record), page), encoding="utf-8")
        return
    for name in given.only or [one for one in algorithms() if one not in read_record()]:
        run = train(name)
        write_record({**read_record(), name: run})


if __name__ == "__main__":
    main()
