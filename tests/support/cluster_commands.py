"""Commands about a job on a cluster: how a test calls them, and the objects that they find."""

from typing import Any

from click.testing import CliRunner, Result
from operator_jobs import UID, job_manifest

from ppojob_cli.main import main

JOBS = "/apis/ppojob.dev/v1alpha1/namespaces/lab/ppojobs"
JOB = f"{JOBS}/sum"
PODS = "/api/v1/namespaces/lab/pods"
EVENTS = "/api/v1/namespaces/lab/events"


def call(*arguments: str, code: int = 0) -> str:
    result: Result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The small job as the API server answers with it; `spec` replaces sections."""
    return {**job_manifest(**spec), "status": status or {}}


def pod(name: str, slug: str, *, ready: bool = True) -> dict[str, Any]:
    """A running pod of the job; `slug` is that of its role."""
    labels = {"ppojob.dev/job": "sum", "ppojob.dev/job-uid": UID, "ppojob.dev/role": slug}
    ready_word = "True" if ready else "False"
    return {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": "2026-01-02T03:00:00Z",
        },
        "spec": {},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready_word}],
            "containerStatuses": [{"name": "trainer", "restartCount": 0}],
        },
    }


def status_of(condition: str, phase: str) -> dict[str, Any]:
    """Status of a job in a phase, of which one condition holds."""
    said = {
        "type": condition,
        "status": "True",
        "reason": "Done",
        "lastTransitionTime": "2026-01-02T03:04:00Z",
    }
    return {"phase": phase, "conditions": [said], "observedGeneration": 2}
