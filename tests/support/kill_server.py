"""Forks one process an order, so that hundreds of real kills cost no import of torch each.

Reads JSON lines {"script": name, "root": folder, "arm": failpoints, "kill_after": seconds or null}
from stdin, runs the script in a forked child, and answers with the child's exit code (negative: by
which signal it ended).
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ppojob_trainer import failpoints
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.journal import CheckpointSaved, Journal
from ppojob_trainer.checkpoint.manifest import DataCursor, Progress
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.checkpoint.tensors import Shard

UID = "uid-1"
CONFIG = b'{"spec":{"seed":1}}'


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.arange(48, dtype=torch.float32).view(6, 8) * step,
        "moment": torch.full((5,), step / 3),
        "steps": torch.tensor(step),
    }


PLACE = DataCursor(epoch=2, cursor=3, sha256="d")
"""In the order of demonstrations."""


def progress(step: int) -> Progress:
    return Progress(
        step=step,
        demonstrations=PLACE,
        data=DataCursor(epoch=0, cursor=4 * step, sha256="d" * 64),
        kl_coefficient=None,
        metrics_lines=step + 1,
        tokens=100 * step,
        seconds=1.0 * step,
    )


def open_store(
    root: Path, uid: str = UID, config: bytes = CONFIG, files: Mapping[str, str] | None = None
) -> CheckpointStore:
    return CheckpointStore(root / "checkpoints", Identity(uid, config, files or {}))


def make_checkpoint(store: CheckpointStore, step: int) -> None:
    pending = store.begin(step)
    files = [
        Shard.of(f"actor/rank-{rank}/{kind}.safetensors", part, role="actor", rank=rank).write(
            pending
        )
        for rank in (0, 1)
        for kind, part in (("model", tensors(step + rank)), ("rng", {"cpu": torch.arange(9)}))
    ]
    store.complete(pending, progress(step), files)


def checkpoint_two(root: Path) -> None:
    """Go on from step 1 to step 2; every kind of act of a checkpoint happens once at least."""
    store = open_store(root)
    journal = Journal(root / "journal.jsonl")
    found = store.recover().checkpoint
    if found is None or found.step < 2:
        make_checkpoint(store, 2)
        journal.append(CheckpointSaved(time=0.0, step=2, size_bytes=0))
    store.prune(1)


def export(root: Path) -> None:
    export_model(
        root / "export", tensors(2).items(), model_folder=root / "model", dtype=torch.bfloat16
    )


SCRIPTS = {"checkpoint_two": checkpoint_two, "export": export}


def _serve(order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            environ = {failpoints.POINT_VARIABLE: order["arm"], failpoints.ENABLE_VARIABLE: "1"}
            failpoints.arm(environ)
            SCRIPTS[order["script"]](Path(order["root"]))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if order["kill_after"] is not None:
        time.sleep(order["kill_after"])
        os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still the child's
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for line in sys.stdin:
        print(_serve(json.loads(line)), flush=True)
