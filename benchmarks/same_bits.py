"""Whether six tiny jobs give the same bits at another revision and here.

    python benchmarks/same_bits.py REV [--only NAME ...]

`ppojob run` runs each job from a work tree of REV and from this one, in the environment of this
one, on the same model, data and reward functions. Every metric but clocks, every row of a step
and every weight of the export must be equal. Prints a line a job, and the first difference of one
that is not; the exit status is 0 where all are equal.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import job_points  # noqa: E402
import run_folders  # noqa: E402
import tiny_jobs  # noqa: E402

PACKAGES = ("api", "cli", "operator", "trainer_image")
KILLS = (
    "rpc.generate.answer.before@3=kill",
    "rpc.update.answer.after@2=kill",
    "controller.step.computed@3=kill",
    "checkpoint.seal.rename.before@1=kill",
)
FOUR_STEPS = {
    "steps": {"total": 4, "validateEvery": 2},
    "recovery": {"restartsWithoutProgress": 100},
    "timeouts": {"livenessSeconds": 60},
}
RLOO = {
    "type": "rloo",
    "promptsPerStep": 4,
    "samplesPerPrompt": 4,
    "miniBatchPrompts": 2,
    "epochs": 2,
    "shuffleMiniBatches": True,
    "kl": {"in": "loss", "coefficient": 0.01},
}


def jobs(folder: Path) -> dict[str, dict[str, Any]]:
    """What each job changes of a tiny one."""
    classifier = {"path": str(folder / "classifier"), "dtype": "float32"}
    return {
        "grpo": {"rollout": {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.25}},
        "two-ranks": {"roles": {"actorRollout": {"ranksPerReplica": 2}}},
        "five-roles": {**tiny_jobs.PPO, "roles": tiny_jobs.OWN_PODS},
        "reward-model": {"rewards": [], "rewardModel": classifier},
        "rloo": {"algorithm": RLOO},
        "killed": {"checkpoint": {"every": 1}},
    }


@contextmanager
def work_tree(revision: str, folder: Path) -> Iterator[Path]:
    """A checkout of the revision, gone afterwards."""
    git = ("git", "-C", str(ROOT), "worktree")
    tree = folder / "tree"
    subprocess.run([*git, "add", "--quiet", "--detach", tree, revision], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", tree], check=True)


def run(tree: Path, name: str, manifest: Path, output: Path) -> None:
    """Run one job from a tree to its end."""
    environment = {**os.environ, "PYTHONPATH": ":".join(str(tree / one) for one in PACKAGES)}
    where = "import ppojob_trainer as one; print(one.__file__)"
    asked = [sys.executable, "-c", where]
    found = subprocess.run(asked, env=environment, check=True, capture_output=True, text=True)
    assert Path(found.stdout).is_relative_to(tree), f"{found.stdout} is imported, not {tree}"
    if name == "killed":
        environment |= job_points.armed(output.with_suffix(".once"), *KILLS)
    command = [sys.executable, "-m", "ppojob_cli", "run", manifest, "--plain", "--output", output]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} at {tree}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    if name == "killed":
        fired = job_points.fired(output.with_suffix(".once"))
        assert fired == {point.partition("@")[0] for point in KILLS}


def left(output: Path) -> dict[str, object]:
    """What a job has left."""
    found: dict[str, object] = {}
    for record in run_folders.without_clock(output):
        for name, value in record.items():
            found[f"step {record['step']:g}: {name}"] = value
    for part in sorted((*output.glob("rollouts/*/*"), *output.glob("validation/*/*"))):
        for column, values in pq.read_table(part).to_pydict().items():
            found[f"{part.relative_to(output)}: {column}"] = values
    weights = output / "export" / "model.safetensors"
    found["weights"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    return found


def differences(there: Mapping[str, object], here: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(there.keys() | here.keys()):
        one, other = there.get(name), here.get(name)
        # `!r` and not the values: nan is equal to nan here, and 0.0 is not -0.0.
        if repr(known(one, other)) != repr(known(other, one)):
            yield f"{name}: {one!r} there, {other!r} here"


def known(value: object, other: object) -> object:
    """A value without the fields of structs that the other revision does not write."""
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return [known(*pair) for pair in zip(value, other, strict=True)]
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: known(value[key], other[key]) for key in value if key in other}
    return value


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", metavar="REV")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of jobs")
    options = parser.parse_args()
    is_equal = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_jobs.make_tiny_folder(folder)
        tiny_jobs.make_classifier(folder / "model", folder / "classifier")
        with work_tree(options.revision, folder) as there:
            for job, changes in jobs(folder).items():
                if options.only and job not in options.only:
                    continue
                place = folder / job
                place.mkdir()
                manifest = tiny_jobs.write_manifest(place, folder, **FOUR_STEPS | changes)
                run(there, job, manifest, place / "there")
                run(ROOT, job, manifest, place / "here")
                found = list(differences(left(place / "there"), left(place / "here")))
                is_equal = is_equal and not found
                print(f"{job}: {'equal' if not found else f'{len(found)} differences'}")
                print("".join(f"  {line[:300]}\n" for line in found[:3]), end="", flush=True)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
