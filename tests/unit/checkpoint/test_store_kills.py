import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kill_server
import pytest
import torch
from trees import tree

from ppojob_trainer import failpoints
from ppojob_trainer.checkpoint import export, journal, store, tensors

pytestmark = pytest.mark.processes

MODULES = (export, journal, store, tensors)  # their import declares the points

CHECKPOINT_POINTS = [
    point for point in failpoints.all_points() if point.startswith(("checkpoint.", "journal."))
]
EXPORT_POINTS = [point for point in failpoints.all_points() if point.startswith("export.")]


@pytest.fixture(scope="module")
def run_process() -> Iterator[Callable[..., int]]:
    command = [sys.executable, kill_server.__file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(script: str, root: Path, arm: str = "", kill_after: float | None = None) -> int:
        order = {"script": script, "root": str(root), "arm": arm, "kill_after": kill_after}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    with server:
        yield run
        server.stdin.close()


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """Step 1 is saved, step 2 is saved and damaged, and two incomplete folders lie about."""
    root = tmp_path_factory.mktemp("begun")
    store = kill_server.open_store(root)
    kill_server.make_checkpoint(store, 1)
    kill_server.make_checkpoint(store, 2)
    checkpoints = root / "checkpoints"
    (checkpoints / "step-000002" / "config.json").unlink()
    (checkpoints / ".step-000003.0.partial" / "actor").mkdir(parents=True)
    (checkpoints / ".step-000001.damaged").mkdir()
    return root


@pytest.fixture(scope="module")
def undisturbed(begun: Path, run_process, tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    shutil.copytree(begun, root, symlinks=True)
    assert run_process("checkpoint_two", root) == 0
    return tree(root)


def test_the_undisturbed_run_ends_with_step_2_alone(undisturbed):
    assert {name.split("/")[1] for name in undisturbed if "/" in name} == {"step-000002", "latest"}
    assert undisturbed["checkpoints/latest"] == "-> step-000002"


@pytest.mark.parametrize("point", CHECKPOINT_POINTS)
def test_killed_anywhere_then_the_same_again(run_process, begun, undisturbed, tmp_path, point):
    root = tmp_path / "run"
    shutil.copytree(begun, root, symlinks=True)
    assert run_process("checkpoint_two", root, f"{point}=kill") == -signal.SIGKILL, (
        "point was not hit"
    )
    found = kill_server.open_store(root).latest().checkpoint
    assert found.step in (1, 2)
    for entry in found.manifest.files:
        if entry.rank == 1 and entry.path.endswith("model.safetensors"):
            read = tensors.read_shard(found.folder, entry)
            expected = kill_server.tensors(found.step + 1)
            assert all(torch.equal(read[name], expected[name]) for name in expected)
    assert (root / "checkpoints" / "latest" / "manifest.json").exists(), "latest never dangles"
    assert run_process("checkpoint_two", root) == 0
    assert without_journal(tree(root)) == without_journal(undisturbed)


def without_journal(files: dict[str, str]) -> dict[str, str]:
    """Killed between seal and journal, the next process has nothing to write there."""
    return {name: content for name, content in files.items() if name != "journal.jsonl"}


@pytest.mark.parametrize(
    "point", ["checkpoint.seal.rename.before", "checkpoint.shard.write.middle"]
)
def test_killed_twice_in_a_row(run_process, begun, undisturbed, tmp_path, point):
    root = tmp_path / "run"
    shutil.copytree(begun, root, symlinks=True)
    for armed in (point, "checkpoint.sweep.remove.before", point):
        assert run_process("checkpoint_two", root, f"{armed}=kill") == -signal.SIGKILL
    assert run_process("checkpoint_two", root) == 0
    assert without_journal(tree(root)) == without_journal(undisturbed)


def test_killed_at_random_moments(run_process, begun, undisturbed, tmp_path):
    """Moments between the named points: in the middle of a write, a hash, a removal."""
    stream = random.Random(20)
    root = tmp_path / "whole"
    shutil.copytree(begun, root, symlinks=True)
    began = time.monotonic()
    assert run_process("checkpoint_two", root) == 0
    longest = time.monotonic() - began
    for number in range(12):
        root = tmp_path / f"run-{number}"
        shutil.copytree(begun, root, symlinks=True)
        run_process("checkpoint_two", root, kill_after=stream.uniform(0.0, longest))
        found = kill_server.open_store(root).latest().checkpoint
        assert found.step in (1, 2)
        assert run_process("checkpoint_two", root) == 0
        assert without_journal(tree(root)) == without_journal(undisturbed)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("model")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text('{"hidden_size": 8}')
    (root / "model" / "tokenizer.json").write_text("{}")
    return root


@pytest.mark.parametrize("point", EXPORT_POINTS)
def test_an_export_is_whole_or_not_there(run_process, model, tmp_path, point):
    """The second export is killed: replacing one has more acts than the first."""
    root = tmp_path / "run"
    shutil.copytree(model, root)
    assert run_process("export", root) == 0
    whole = tree(root / "export")
    assert set(whole) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert run_process("export", root, f"{point}=kill") == -signal.SIGKILL, "point was not hit"
    assert tree(root / "export") in (whole, {})
    assert run_process("export", root) == 0
    assert tree(root / "export") == whole
    assert sorted(os.listdir(root)) == ["export", "model"]
