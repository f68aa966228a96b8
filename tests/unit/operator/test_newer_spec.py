"""A spec that is newer than the operator, as between two halves of an upgrade of the chart."""

from typing import Any

from operator_jobs import NO_STATUS, job_manifest, make_job, with_status
from operator_plans import UP, claim, kinds, look, status_after, status_of

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.conditions import condition
from ppojob_operator.reading import read_job
from ppojob_operator.state import Job


def newer_job(status: PPOJobStatus = NO_STATUS, **changes: Any) -> Job:
    """A job into which an API server wrote the default of a field that is not known here."""
    manifest = job_manifest(**changes)
    manifest["spec"]["checkpoint"]["compression"] = "none"
    return read_job(with_status(manifest, status))


def accepted(status: PPOJobStatus) -> tuple[str, str]:
    found = claim(status, "Accepted")
    return found.status, found.reason


def test_a_new_job_waits_for_an_operator_that_knows_its_fields() -> None:
    planned = look(newer_job())
    status = status_after(planned)
    assert kinds(planned) == ["Emit"]
    assert (status.phase, status.reason, status.finish_time) == ("Pending", "NewerSpec", None)
    assert accepted(status) == ("Unknown", "NewerSpec")
    assert status.message == claim(status, "Accepted").message
    assert "spec.checkpoint.compression: " in status.message
    assert "upgrade the operator" in status.message
    assert condition(status, "Failed") is None
    assert look(newer_job(status)).status is None


def test_it_goes_on_with_one_that_does() -> None:
    waiting = status_of(newer_job())
    status = status_of(make_job(waiting))
    assert (status.phase, accepted(status)[0]) == ("Starting", "True")


def test_what_else_is_wrong_is_for_the_newer_one_to_judge() -> None:
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 1}
    status = status_of(newer_job(algorithm=algorithm))
    assert (status.phase, status.reason) == ("Pending", "NewerSpec")
    assert "samplesPerPrompt" not in status.message


def test_a_running_job_goes_on_as_it_was_accepted() -> None:
    running = status_of(make_job(), UP)
    planned = look(newer_job(running), UP)
    status = status_after(planned)
    assert kinds(planned) == ["Emit"]
    assert (status.phase, status.start_time) == (running.phase, running.start_time)
    assert accepted(status) == ("Unknown", "NewerSpec")


def test_a_job_that_has_failed_stays_so() -> None:
    status = status_of(make_job(steps={}))
    for _ in range(2):
        status = look(newer_job(status)).status or status
        assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
        assert accepted(status)[1] == "NewerSpec"


def test_fields_of_a_newer_status_are_read_over() -> None:
    """A default that an API server writes into a status stops no operator of before."""
    running = status_of(make_job(), UP)
    manifest = with_status(job_manifest(), running)
    manifest["status"]["ofLaterVersions"] = 1
    manifest["status"]["roles"][0]["ofLaterVersions"] = {"any": 1}
    assert read_job(manifest).status == running
