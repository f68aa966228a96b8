"""What must be made, told and given back so that a job is placed as a whole. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from ppojob_operator.build import kueue
from ppojob_operator.build.gang import GANGS
from ppojob_operator.build.metadata import gang_name
from ppojob_operator.build.pod_sets import pod_sets
from ppojob_operator.conditions import holds, inert, rfc3339
from ppojob_operator.kinds import GANG_KINDS, child_kind
from ppojob_operator.object_actions import object_actions
from ppojob_operator.policies.placing import NOT_ASKED
from ppojob_operator.policies.startup import pods_ready
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.settings import Settings
from ppojob_operator.state import Action, ApplyStatus, Create, Delete, ReleaseQuota


def gang_changes(here: ReconcileContext, defaults: Settings) -> Iterable[Action]:
    """The actions: objects that pods are placed by, and what a queue is told."""
    if not here.wants_gang:
        yield from _unwanted(here)
        return
    gang = GANGS.get(here.job.scheduling.type)
    if gang is None or here.config is None:
        return
    if not here.observed.gangs.served.issuperset(gang.kinds):
        return
    sets = pod_sets(here.job, here.config, here.pods, defaults)
    for one in gang.objects(here.job, sets, here.observed.gangs):
        yield from (action for action in object_actions(here, one) if _is_free(here, action))
        if (child_kind(one), one["metadata"]["name"]) not in here.observed.children:
            # The API server takes a PodGroup only where it has heard of its Workload.
            return


def told_to_queue(here: ReconcileContext) -> Iterator[Action]:
    """What Kueue is told of the pods, and of the end."""
    child = kueue.own_workload(here.job, here.observed)
    if child is None:
        return
    answer = kueue.answer(child)
    if answer.holds("Finished"):
        return
    if here.has_ended and here.observed.pods:
        # They may be committing, and what they hold would be given to another job.
        return
    evicted = answer.holds("Evicted") and answer.holds("QuotaReserved")
    if evicted and not here.observed.pods and not here.has_ended:
        yield ReleaseQuota(child.name, child.uid)
        return
    told = _end(here) if here.has_ended else _readiness(here, answer)
    if told:
        manifest = kueue.conditions(here.job, told, rfc3339(here.now))
        yield ApplyStatus(manifest, child.uid)


def _end(here: ReconcileContext) -> Mapping[str, kueue.Said]:
    status = here.job.status
    reason = "Succeeded" if holds(status, "Complete") else "Failed"
    words = inert(f"{status.reason}: {status.message}")
    return {"Finished": kueue.Said("True", reason, words)}


def _readiness(here: ReconcileContext, answer: kueue.Answer) -> Mapping[str, kueue.Said]:
    """The condition by which Kueue takes quota back from a job whose pods never start."""
    if here.admission.claim.reason in NOT_ASKED:
        return {}
    is_ready = bool(here.admission.claim.holds and pods_ready(here.roles, here.observed, 0.0).holds)
    was = answer.conditions.get("PodsReady")
    value: Literal["True", "False"] = "True" if is_ready else "False"
    if value == (was.status if was else "False"):
        return {}
    is_back = was is not None and was.reason == "WaitForRecovery"
    if is_ready:
        reason, words = "Recovered" if is_back else "Started", "all pods are ready"
    else:
        has_started = here.admission.claim.holds
        reason = "WaitForRecovery" if has_started else "WaitForStart"
        words = "not all pods are ready"
    return {"PodsReady": kueue.Said(value, reason, words)}


def _is_free(here: ReconcileContext, action: Action) -> bool:
    """Whether a queue may be asked now."""
    if here.job.scheduling.type != "kueue":
        return True
    if isinstance(action, Create):
        # Pods of before still hold what another admission would count anew.
        return not here.observed.pods
    child = here.observed.children[kueue.KIND, gang_name(here.job)]
    # What was admitted is what the pods are: an edit is for the next admission.
    return not kueue.answer(child).holds("QuotaReserved")


def _unwanted(here: ReconcileContext) -> Iterator[Action]:
    """Objects of a job that has no pods and is to have none: what they reserve is free."""
    for (kind, name), child in here.observed.children.items():
        # What Kueue shows of a job that has ended it keeps as long as it likes.
        is_record = here.has_ended and kind == kueue.KIND
        if kind in GANG_KINDS and not child.is_deleting and not is_record:
            yield Delete(kind, name, child.uid)
