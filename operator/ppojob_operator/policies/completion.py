"""How a job ends, and what becomes of it then. Pure."""

import datetime

from ppojob_api import contract
from ppojob_api.v1alpha1.schedule import LifecycleSpec
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.conditions import from_rfc3339, holds
from ppojob_operator.policies.failure import Ending
from ppojob_operator.state import ControllerReport, Job, Observed, Time


def ending(
    status: PPOJobStatus,
    report: ControllerReport | None,
    failure: Ending | None,
    lifecycle: LifecycleSpec,
    now: Time,
) -> Ending | None:
    """How the job ended; None while it goes on. What was written down once stays."""
    if holds(status, "Complete"):
        return Ending("Succeeded", status.reason, status.message)
    if holds(status, "Failed"):
        return Ending("Failed", status.reason, status.message)
    if report is not None and report.phase == "done":
        return _reported(report)
    if failure is not None:
        return failure
    limit = lifecycle.active_deadline_seconds
    left = deadline_in(status, lifecycle, now)
    if left is not None and left <= 0:
        return Ending(
            "Failed",
            "DeadlineExceeded",
            f"spec.lifecycle.activeDeadlineSeconds: it ran for {limit} s without reaching its end",
        )
    return None


def deadline_in(status: PPOJobStatus, lifecycle: LifecycleSpec, now: Time) -> float | None:
    """Seconds until the job has run for too long; None: never."""
    if lifecycle.active_deadline_seconds is None or status.start_time is None:
        return None
    limit = datetime.timedelta(seconds=lifecycle.active_deadline_seconds)
    return (from_rfc3339(status.start_time) + limit - now).total_seconds()


def expiry_in(job: Job, observed: Observed, now: Time) -> float | None:
    """Seconds until an ended job is to be deleted; None: never, or not before its pods are gone.

    The controller of one whose deadline is over may be committing.
    """
    seconds = job.terms.lifecycle.ttl_seconds_after_finished
    if seconds is None or job.status.finish_time is None or observed.pods:
        return None
    rest = datetime.timedelta(seconds=seconds)
    return (from_rfc3339(job.status.finish_time) + rest - now).total_seconds()


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
