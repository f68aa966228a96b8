"""All pods or none: what is held in part is given back after a time, whoever placed it. Pure.

Two jobs that each hold half of the GPUs would wait for each other for ever. So a job that was not
placed as a whole within its deadline lets go, and tries again after the same time.
"""

import datetime

from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_operator.conditions import ObservedCondition, condition, from_rfc3339
from ppojob_operator.policies.placing import Admission, placing
from ppojob_operator.state import Job, Observed, Time

GAVE_BACK = "GaveBack"


def admission(job: Job, observed: Observed, now: Time) -> Admission:
    """Whether the job may take resources."""
    asked, scheduling = placing(job, observed), job.scheduling
    if scheduling.start_deadline_seconds is None:
        return asked
    limit = datetime.timedelta(seconds=scheduling.start_deadline_seconds)
    was = condition(job.status, "Admitted")
    if was is not None and was.reason == GAVE_BACK:
        left = (from_rfc3339(was.last_transition_time) + limit - now).total_seconds()
        if left > 0 or observed.pods:
            return _given_back(was.message, max(left, 1.0))
        return asked
    ready = condition(job.status, "PodsReady")
    is_short = asked.claim.holds and _holds_a_part(scheduling, observed)
    if ready is None or ready.status == "True" or not is_short:
        return asked
    # From when it lacked pods, so a job that has trained for days gets the whole time as well; but
    # never from before this attempt: without pods it was queued, suspended, or had given back.
    started = from_rfc3339(job.status.start_time) if job.status.start_time else now
    since = max(started, from_rfc3339(ready.last_transition_time))
    left = (since + limit - now).total_seconds()
    if left > 0:
        return Admission(asked.claim, asked.may_have_pods, asked.placements, left)
    return _given_back(_words(scheduling, observed), limit.total_seconds())


def _given_back(words: str, seconds: float) -> Admission:
    return Admission(
        ObservedCondition("Admitted", False, GAVE_BACK, words), False, again_in=seconds
    )


def _holds_a_part(scheduling: SchedulingSpec, observed: Observed) -> bool:
    """Whether some pods hold a place, or all of them quota, while others find no place."""
    is_short = any(pod.unschedulable for pod in observed.pods)
    return is_short and (scheduling.type == "kueue" or any(pod.node for pod in observed.pods))


def _words(scheduling: SchedulingSpec, observed: Observed) -> str:
    placed = sum(bool(pod.node) for pod in observed.pods)
    why = next(pod.unschedulable for pod in observed.pods if pod.unschedulable)
    return (
        f"{placed} of {len(observed.pods)} pods had a place after"
        f" {scheduling.start_deadline_seconds} s; tried again after as long: {why}"
    )
