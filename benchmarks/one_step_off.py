"""Whether the rows of the next step are drawn while this one trains: a step over its longer half.

    python benchmarks/one_step_off.py [--generate 3.0] [--train 3.0] [--steps 8] [--ahead 4]

Two tiny jobs with engines in a pod of their own, in which both halves of a step sleep: users of
conversations while rows are drawn, reward functions while rows are scored. One draws and trains by
turns, the other with `spec.rollout.maxStaleness: 1`. The first says how long drawing takes, and
the rest of its steps. The last line is a JSON object of figures, medians over the steps between the
first and the last:

- `over_longer`: a step that draws ahead, over the larger of drawing and the rest;
- `over_sum`: the same over a step of the job that does one behind the other;
- `engine_steps_one_ahead`, `engine_steps_far_ahead`: of two more jobs, in which nothing sleeps and
  rows are of very different lengths: steps that the engine makes for a step of the job, one step
  ahead and `--ahead`. They are counted, so no clock has a part in them;
- `far_over_one`: the second over the first;
- `beside_over_synchronous`: the same of engines in the ranks that train, which draw the rows of
  `--ahead` steps beside those of one, over those that draw one step alone;
- `one_beside_over_synchronous`: likewise with 1.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import run_folders  # noqa: E402
import tiny_jobs  # noqa: E402
import tiny_models  # noqa: E402

USER = """
import time

def slow(messages):
    time.sleep({seconds})
    return True, "enough", 0.5
"""
REWARD = """
import time

def late(data_source, solution_str, ground_truth, extra_info):
    time.sleep({seconds})
    return len(solution_str) / 10
"""
ROWS = 8
LONG_TAILED = {"maxPromptTokens": 32, "maxResponseTokens": 224}
"""Three tokens of about a hundred end a response: few get far beyond the mean of 30."""


def make_folder(folder: Path, generate: float, train: float) -> None:
    tiny_jobs.make_tiny_folder(folder)
    (folder / "user.py").write_text(USER.format(seconds=generate))
    (folder / "late.py").write_text(REWARD.format(seconds=train))
    path = folder / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["extra_info"]["interaction_kwargs"] = {"name": "slow"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(folder: Path, staleness: int, steps: int) -> list[dict[str, float]]:
    """The metrics of the steps of a job, without the first and the last."""
    place = folder / f"staleness-{staleness}"
    place.mkdir()
    spec = tiny_jobs.make_manifest(folder)["spec"]
    stops = [tiny_models.NAMES.index(sign) for sign in ".,:;!?+-*/"]
    rollout = {**spec["rollout"], "stopTokenIds": stops, "maxStaleness": staleness}
    job = tiny_jobs.write_manifest(
        place,
        folder,
        agent={
            "interactions": [{"name": "slow", "source": {"path": str(folder / "user.py")}}],
            "turnTokens": 24,
        },
        algorithm={"type": "grpo", "promptsPerStep": ROWS // 2, "samplesPerPrompt": 2},
        data={
            "train": spec["data"]["train"],
            "maxPromptTokens": 64,
            "maxResponseTokens": 96,
        },
        rollout=rollout,
        rewards=[{"function": "late", "source": {"path": str(folder / "late.py")}}],
        roles={"rollout": {}, "tools": {"cpu": ROWS}, "reward": {"cpu": ROWS}},
        steps={"total": steps},
        checkpoint={"every": None, "export": False},
    )
    return run_folders.metrics(tiny_jobs.run_alone(job))[1:-1]


def engine_steps(folder: Path, ahead: int, steps: int, *, beside: bool = False) -> list[int]:
    """Steps of the engine in each phase whose weights no other phase has; the last are left out.

    Engines are in pods of their own, or in the ranks that train (`beside`).
    """
    place = folder / f"{'beside' if beside else 'ahead'}-{ahead}"
    place.mkdir()
    spec = tiny_jobs.make_manifest(folder)["spec"]
    stops = [tiny_models.NAMES.index(sign) for sign in ".,"]
    job = tiny_jobs.write_manifest(
        place,
        folder,
        algorithm={"type": "grpo", "promptsPerStep": ROWS, "samplesPerPrompt": 2},
        data={"train": spec["data"]["train"], **LONG_TAILED},
        optimizer={"learningRate": 1e-30},  # lengths stay as they are
        rollout={**spec["rollout"], "stopTokenIds": stops, "maxStaleness": ahead},
        roles={} if beside else {"rollout": {}},
        steps={"total": steps + 2 * ahead + 1},
        checkpoint={"every": None, "export": False},
    )
    drawn = Counter[int]()
    for path in (tiny_jobs.run_alone(job) / "rollouts").glob("*/*.parquet"):
        for row in pq.read_table(path, columns=["segments"]).to_pylist():
            for one in row["segments"]:
                drawn[one["version"]] = max(drawn[one["version"]], one["tokens"])
    return [drawn[version] for version in range(1, steps + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generate", type=float, default=3.0, help="seconds")
    parser.add_argument("--train", type=float, default=3.0, help="seconds")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ahead", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_folder(place, arguments.generate, arguments.train)
        by_turns, ahead = (measured(place, one, arguments.steps) for one in (0, 1))
        one_ahead, far_ahead = (
            statistics.fmean(engine_steps(place, one, arguments.steps))
            for one in (1, arguments.ahead)
        )
        synchronous, one_beside, beside = (
            statistics.fmean(engine_steps(place, one, arguments.steps, beside=True))
            for one in (0, 1, arguments.ahead)
        )
    step = statistics.median(line["timing_s/step"] for line in ahead)
    drawing = statistics.median(line["timing_s/gen"] for line in by_turns)
    whole = statistics.median(line["timing_s/step"] for line in by_turns)
    figures = {
        "step_seconds": step,
        "by_turns_seconds": whole,
        "drawing_seconds": drawing,
        "waited_for_rows_seconds": statistics.median(line["timing_s/gen"] for line in ahead),
        "over_longer": step / max(drawing, whole - drawing),
        "over_sum": step / whole,
        "engine_steps_one_ahead": one_ahead,
        "engine_steps_far_ahead": far_ahead,
        "far_over_one": far_ahead / one_ahead,
        "one_beside_over_synchronous": one_beside / synchronous,
        "beside_over_synchronous": beside / synchronous,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
