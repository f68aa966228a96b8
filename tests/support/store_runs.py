"""Jobs of a few lines, and runs as a store of checkpoints has them, without a rank."""

import contextlib
import json
from pathlib import Path
from typing import Any

import kill_server

from ppojob_api import validation
from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_trainer.checkpoint.copies import Copies
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.journal import Journal
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.processor import has_native_bfloat16


def resolved_job(**spec: Any) -> RunConfig:
    job = {
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PPOJob",
        "metadata": {"name": "sum"},
        "spec": {
            "model": {"path": "model"},
            "data": {"train": [{"path": "a.jsonl"}]},
            "algorithm": {"type": "grpo", "promptsPerStep": 1, "samplesPerPrompt": 2},
            "rewards": [{"function": "gsm8k"}],
            "steps": {"total": 9},
            **spec,
        },
    }
    judged = validation.validate(job)
    assert isinstance(judged, PPOJob), judged
    return resolve(judged)


def job_of(tmp_path: Path, **spec: Any) -> RunConfig:
    copied = {"checkpoint": {"copyTo": str(tmp_path / "bucket")}}
    return resolved_job(**copied | spec).on_processor(native_bfloat16=has_native_bfloat16())


def store_of(run: Path, config: RunConfig) -> CheckpointStore:
    return CheckpointStore(run / "checkpoints", Identity(config.uid, config.trajectory_json()))


def train(run: Path, config: RunConfig, *steps: int) -> CheckpointStore:
    store = store_of(run, config)
    Journal(run / "checkpoints" / "journal.jsonl").began()
    copies = Copies(config, store, lambda _: None)
    for step in steps:
        lines = [json.dumps({"step": number}) for number in range(step + 1)]
        (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        kill_server.make_checkpoint(store, step)
        copies.start()
        with contextlib.suppress(Exception):
            copies._wait(lambda: False)
        store.prune(2, held=copies.step)
    return store


def content(run: Path) -> dict[str, bytes]:
    """What decides how a run goes on; the manifest names the job."""
    checkpoints = run / "checkpoints"
    files = {
        str(path.relative_to(run)): path.read_bytes()
        for path in checkpoints.rglob("step-*/**/*")
        if path.is_file() and path.name != "manifest.json"
    }
    began = Journal(checkpoints / "journal.jsonl").began()
    return files | {"metrics": (run / "metrics.jsonl").read_bytes(), "began": str(began).encode()}
