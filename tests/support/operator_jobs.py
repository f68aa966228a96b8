"""Jobs as a cluster holds them, and what the operator sees of them, for tests of the operator."""

import datetime
from typing import Any

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.plan import plan
from ppojob_operator.reading import read_job
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.settings import Settings
from ppojob_operator.state import Child, ChildKind, Create, Job, Observed

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SETTINGS = Settings(trainer_image="trainer:1")
NO_STATUS = PPOJobStatus()
UID = "11111111-2222-3333-4444-555555555555"


def job_manifest(**changes: Any) -> dict[str, Any]:
    """A small job as the API server has it; `changes` replace sections of the spec."""
    spec = {
        "model": {"path": "/models/tiny"},
        "data": {"train": [{"path": "/data/train.jsonl"}]},
        "algorithm": {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
        "steps": {"total": 8},
        "checkpoint": {"every": 2, "volume": {"claimName": "runs"}},
        "roles": {"reward": {"replicas": 2}},
    }
    return {
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PPOJob",
        "metadata": {
            "name": "sum",
            "namespace": "lab",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-02T03:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {**spec, **changes},
    }


def with_status(manifest: dict[str, Any], status: PPOJobStatus) -> dict[str, Any]:
    """A job as the API server has it once a status was written."""
    return {**manifest, "status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}


def make_job(status: PPOJobStatus = NO_STATUS, **changes: Any) -> Job:
    """The same job as the operator reads it."""
    return read_job(with_status(job_manifest(**changes), status))


def children_of(job: Job) -> dict[tuple[ChildKind, str], Child]:
    """All objects of a job, as they are once they were made."""
    actions = [one for wave in plan(job, Observed(), SETTINGS, NOW).waves for one in wave]
    made = [one.manifest for one in actions if isinstance(one, Create)]
    children = [
        Child(one["kind"], one["metadata"]["name"], f"uid-{number}", job.uid, False, one)
        for number, one in enumerate(made)
    ]
    return {(child.kind, child.name): child for child in children}


def config_digest(job: Job) -> str:
    return pod_config(job, job.validated).digest


CONFIG_DIGEST = config_digest(make_job())
CHILDREN = children_of(make_job())


def observed(**fields: Any) -> Observed:
    """What is there once a job's objects are there."""
    return Observed(children=CHILDREN, **fields)
