"""How a job ends, and what becomes of it then. Pure."""

import datetime

from ppojob_api import contract
from ppojob_operator.conditions import from_rfc3339, holds
from ppojob_operator.policies.failure import Ending
from ppojob_operator.state import ControllerReport, Job, Observed, Time


def ending(
    job: Job, report: ControllerReport | None, failure: Ending | None, now: Time
) -> Ending | None:
    """How the job ended; None while it goes on. What was written down once stays."""
    status = job.status
    if holds(status, "Complete"):
        return Ending("Succeeded", status.reason, status.message)
    if holds(status, "Failed"):
        return Ending("Failed", status.reason, status.message)
    if report is not None and report.phase == "done":
        return _reported(report)
    if failure is not None:
        return failure
    left = deadline_in(job, now)
    if left is not None and left <= 0:
        limit = job.lifecycle.active_deadline_seconds
        return Ending(
            "Failed",
            "DeadlineExceeded",
            f"spec.lifecycle.activeDeadlineSeconds: it ran for {limit} s without reaching its end",
        )
    return None


def deadline_in(job: Job, now: Time) -> float | None:
    """Seconds until the job has run for too long; None: never."""
    return _left(job.status.start_time, job.lifecycle.active_deadline_seconds, now)


def expiry_in(job: Job, observed: Observed, now: Time) -> float | None:
    """Seconds until an ended job is to be deleted; None: never, or not before its pods are gone.

    The controller of one whose deadline is over may be committing.
    """
    if observed.pods:
        return None
    return _left(job.status.finish_time, job.lifecycle.ttl_seconds_after_finished, now)


def _left(since: str | None, seconds: int | None, now: Time) -> float | None:
    if since is None or seconds is None:
        return None
    return (from_rfc3339(since) + datetime.timedelta(seconds=seconds) - now).total_seconds()


def _reported(report: ControllerReport) -> Ending | None:
    code = report.exit_code
    if code == contract.EXIT_DONE:
        return Ending("Succeeded", "TrainingDone", "every step is done and committed")
    if code == contract.EXIT_INTERRUPTED:
        # Somebody asked it to end; its pod is on its way out, and another goes on.
        return None
    if code == contract.EXIT_INVALID:
        return Ending("Failed", "InvalidInput", report.reason)
    if code is None or code < 0:
        return Ending("Failed", "ControllerLost", report.reason)
    return Ending("Failed", "TrainingFailed", report.reason)
