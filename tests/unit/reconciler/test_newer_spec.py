"""A spec that is newer than the operator, as between two halves of an upgrade of the chart."""

import dataclasses
from typing import Any

from operator_jobs import NOW, SETTINGS, job_manifest, observed
from operator_plans import all_pods, kinds, status_after

from ppojob_api.v1alpha1.status import Condition, PPOJobStatus
from ppojob_operator.conditions import condition
from ppojob_operator.plan import plan
from ppojob_operator.reading import read_job
from ppojob_operator.state import Job, Observed


def newer_job(status: PPOJobStatus | None = None, **changes: Any) -> Job:
    """A job into which an API server wrote the default of a field that is not known here."""
    manifest = job_manifest(**changes)
    manifest["spec"]["checkpoint"]["compression"] = "none"
    if status is not None:
        manifest["status"] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return read_job(manifest)


def accepted(status: PPOJobStatus) -> Condition:
    found = condition(status, "Accepted")
    assert found is not None
    return found


def test_a_new_job_waits_for_an_operator_that_knows_its_fields() -> None:
    planned = plan(newer_job(), Observed(), SETTINGS, NOW)
    status = status_after(planned)
    assert kinds(planned) == ["Emit"]
    assert (status.phase, status.reason, status.finish_time) == ("Pending", "NewerSpec", None)
    assert (accepted(status).status, accepted(status).reason) == ("Unknown", "NewerSpec")
    assert status.message == accepted(status).message
    assert 'spec.checkpoint.compression: got "none"' in status.message
    assert "upgrade the operator" in status.message
    assert condition(status, "Failed") is None
    assert plan(newer_job(status), Observed(), SETTINGS, NOW).status is None


def test_it_goes_on_with_one_that_does() -> None:
    waiting = status_after(plan(newer_job(), Observed(), SETTINGS, NOW))
    known = dataclasses.replace(read_job(job_manifest()), status=waiting)
    status = status_after(plan(known, Observed(), SETTINGS, NOW))
    assert (status.phase, accepted(status).status) == ("Starting", "True")


def test_what_else_is_wrong_is_for_the_newer_one_to_judge() -> None:
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 1}
    status = status_after(plan(newer_job(algorithm=algorithm), Observed(), SETTINGS, NOW))
    assert (status.phase, status.reason) == ("Pending", "NewerSpec")
    assert "samplesPerPrompt" not in status.message


def test_a_running_job_goes_on_as_it_was_accepted() -> None:
    seen = observed(pods=all_pods(is_ready=True))
    running = status_after(plan(read_job(job_manifest()), seen, SETTINGS, NOW))
    planned = plan(newer_job(running), seen, SETTINGS, NOW)
    status = status_after(planned)
    assert kinds(planned) == ["Emit"]
    assert (status.phase, status.start_time) == (running.phase, running.start_time)
    assert (accepted(status).status, accepted(status).reason) == ("Unknown", "NewerSpec")


def test_a_job_that_has_failed_stays_so() -> None:
    status = status_after(plan(read_job(job_manifest(steps={})), Observed(), SETTINGS, NOW))
    for _ in range(2):
        status = plan(newer_job(status), Observed(), SETTINGS, NOW).status or status
        assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
        assert accepted(status).reason == "NewerSpec"


def test_fields_of_a_newer_status_are_read_over() -> None:
    """A default that an API server writes into a status stops no operator of before."""
    seen = observed(pods=all_pods(is_ready=True))
    running = status_after(plan(read_job(job_manifest()), seen, SETTINGS, NOW))
    manifest = job_manifest()
    status = running.model_dump(mode="json", by_alias=True, exclude_none=True)
    status["ofLaterVersions"] = 1
    status["roles"][0]["ofLaterVersions"] = {"any": 1}
    job = read_job({**manifest, "status": status})
    assert job.status == running
