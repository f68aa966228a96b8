"""All pods or none, without a scheduler that knows gangs: what is held in part is given back. Pure.

Two jobs that each hold half of the GPUs would wait for each other for ever. So a job that was not
placed as a whole within its deadline lets go, and tries again after the same time.
"""

import datetime

from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.conditions import Claim, condition, from_rfc3339
from ppojob_operator.state import Observed, Time

GAVE_BACK = "GaveBack"


def admission(
    status: PPOJobStatus, scheduling: SchedulingSpec, observed: Observed, now: Time
) -> tuple[Claim, float | None]:
    """The condition Admitted, and seconds until time alone may change it."""
    free = Claim("Admitted", True, "NoQueue", "no queue is asked for")
    if scheduling.start_deadline_seconds is None:
        return free, None
    limit = datetime.timedelta(seconds=scheduling.start_deadline_seconds)
    was = condition(status, "Admitted")
    if was is not None and was.reason == GAVE_BACK:
        left = (from_rfc3339(was.last_transition_time) + limit - now).total_seconds()
        if left > 0 or observed.pods:
            return Claim("Admitted", False, GAVE_BACK, was.message), max(left, 1.0)
        return free, None
    # From when it lacked pods: a job that has trained for days gets the whole time as well.
    ready = condition(status, "PodsReady")
    if ready is None or ready.status == "True" or not _is_placed_in_part(observed):
        return free, None
    left = (from_rfc3339(ready.last_transition_time) + limit - now).total_seconds()
    if left > 0:
        return free, left
    return Claim("Admitted", False, GAVE_BACK, _words(scheduling, observed)), limit.total_seconds()


def _is_placed_in_part(observed: Observed) -> bool:
    """Whether some pods hold a place while others find none."""
    is_short = any(pod.unschedulable for pod in observed.pods)
    return is_short and any(pod.node for pod in observed.pods)


def _words(scheduling: SchedulingSpec, observed: Observed) -> str:
    placed = sum(bool(pod.node) for pod in observed.pods)
    why = next(pod.unschedulable for pod in observed.pods if pod.unschedulable)
    return (
        f"{placed} of {len(observed.pods)} pods had a place after"
        f" {scheduling.start_deadline_seconds} s; tried again after as long: {why}"
    )
