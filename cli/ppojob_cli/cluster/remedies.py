"""What to do about each reason: the words of docs/operations.md, which a test holds equal.

Reasons are those of conditions, of classes of failures, and of what only `explain` finds.
"""

from collections.abc import Mapping
from typing import Final

from ppojob_api.v1alpha1.status import FailureKind
from ppojob_operator.conditions import ConditionType

_NONE_UNTIL_RIGHT: Final = (
    "as above, of a job without pods: it was begun before, and gets none until the spec is right"
)

CONDITIONS: Final[Mapping[ConditionType, Mapping[str, str]]] = {
    "Accepted": {
        "Valid": "nothing",
        "InvalidSpec": (
            "the message has the lines of `ppojob validate`; a job that never began has failed: "
            "correct the file, delete the job, apply it again. A running job goes on as it was "
            "accepted: it ends, is suspended, and has pods replaced as ever, but until the file is "
            "corrected none of its objects is made or changed"
        ),
        "NewerSpec": (
            "wait: the resource was upgraded before the operator, which does not know the fields "
            "that the message names; the job begins with one that does, and a running job goes on "
            "as it was accepted. If it lasts, upgrade the operator"
        ),
    },
    "Admitted": {
        "NoQueue": "nothing: no queue is asked for",
        "Admitted": "nothing: a queue of Kueue has admitted it; all its pods were placed together",
        "Placed": "nothing: a queue of Kueue has admitted it; all its pods were placed together",
        "Queued": "wait: the job is in its LocalQueue, and Kueue has not looked at it yet",
        "Pending": (
            "Kueue's own word and sentence: wait for quota, or correct the queue that the message "
            "names"
        ),
        "Inadmissible": (
            "Kueue's own word and sentence: wait for quota, or correct the queue that the message "
            "names"
        ),
        "AdmissionChecks": (
            "quota is reserved; the message names the checks of Kueue that are not passed"
        ),
        "Preempted": (
            "Kueue has evicted the job: its controller commits, its pods go, and it is in the "
            "queue again; a deactivated one when its Workload is active again"
        ),
        "PodsReadyTimeout": (
            "Kueue has evicted the job: its controller commits, its pods go, and it is in the "
            "queue again; a deactivated one when its Workload is active again"
        ),
        "Deactivated": (
            "Kueue has evicted the job: its controller commits, its pods go, and it is in the "
            "queue again; a deactivated one when its Workload is active again"
        ),
        "PriorityClassMissing": (
            "make the object that the message names; if it is there, the operator may not read it "
            "(`gangs.kueue` in the chart's values)"
        ),
        "FlavorMissing": (
            "make the object that the message names; if it is there, the operator may not read it "
            "(`gangs.kueue` in the chart's values)"
        ),
        "GangWaits": (
            "the scheduler's words: it has no places for all pods, so none of them has one"
        ),
        "GangUnavailable": (
            "install what the message names, and turn it on in the values of the operator's "
            "chart. A job that has pods keeps them"
        ),
        "GaveBack": (
            "some pods found no place within `spec.scheduling.startDeadlineSeconds`, so the job "
            "let go of the others and tries again after as long: the message has the scheduler's "
            "words"
        ),
        "ObjectRefused": (
            "the API server did not take the object that the gang is placed by: as below"
        ),
        "InvalidSpec": _NONE_UNTIL_RIGHT,
        "NewerSpec": _NONE_UNTIL_RIGHT,
    },
    "PodsReady": {
        "EveryPodReady": "nothing",
        "Starting": "wait; images are pulled, supervisors start",
        "PodsMissing": (
            "wait; if it lasts, `kubectl describe statefulset` says why no pod is made (quota, "
            "admission)"
        ),
        "PodsLeaving": "wait: pods of before have to be gone; a controller may be committing",
        "Unschedulable": (
            "the scheduler's words: free or add nodes, or ask for less (`spec.roles`; "
            "`spec.pods[].resources.cpu`, which is asked for and not capped); a claim that does "
            "not exist is named here too"
        ),
        "ImageUnavailable": (
            "correct `spec.pods[].image` or `imagePullSecrets`, or the operator's `trainerImage`"
        ),
        "ContainerWaits": (
            "the kubelet's words: most often a Secret or ConfigMap that `spec.pods` names and "
            "that is not there, or a container that ends again and again"
        ),
        "PodFailed": "the kubelet has ended the pod (evicted, out of disk); another is made",
        "NodeLost": "the node is silent; its pods are given up after 30 s and made elsewhere",
        "ObjectRefused": (
            "the API server did not take an object from the operator: a quota, an admission "
            "webhook, or an object of that name that is somebody else's. Remove what is in the "
            "way, or name the job otherwise"
        ),
        "Stopped": "nothing: no pods are wanted",
    },
    "Rendezvoused": {
        "AllRanksMet": "nothing",
        "Waiting": (
            "wait; the controller's log says for which rank it waits. While the controller "
            "itself is started (again), what an earlier one has said does not count"
        ),
        "Recovering": "wait; a role is started again",
        "Stopped": "nothing",
    },
    "Training": {
        "Stepping": "nothing",
        "Waiting": "see `PodsReady` and `Rendezvoused`",
        "Stopped": "nothing",
    },
    "Checkpointed": {
        "Committed": "nothing; `status.training.lastCommittedStep` is the step",
        "NoCommit": "a job that is lost now begins at its first step; set `spec.checkpoint.every`",
    },
    "Suspended": {
        "Asked": "set `spec.lifecycle.suspend` to false to go on, bit for bit from the commit",
        "Suspending": "wait: the controller finishes its step and commits, then the pods go",
        "NotAsked": "nothing",
    },
    "Failed": {
        "TrainingDone": "nothing; the run folder holds the export",
        "NotEnded": "nothing: the other one of the two says how it is",
        "Succeeded": "nothing: the other one of the two says how it is",
        "Failed": "nothing: the other one of the two says how it is",
        "InvalidInput": (
            "the controller found the input wrong (data, model, reward function), or a pod runs "
            "another image, configuration or model than the others; the message is the line that "
            "says what to write"
        ),
        "TrainingFailed": "the message and the controller's log say why",
        "ControllerLost": (
            "the controller was killed again and again without a step in between: most often "
            "memory; see its pod's last state, raise `spec.pods[].memory`"
        ),
        "InvalidConfiguration": (
            "a container ended as it always will (bad command, bad environment); "
            "`status.failures` has its words"
        ),
        "RepeatedFailure": (
            "the same failure twice at one step: the evidence is in `status.failures`; it would "
            "fail there again"
        ),
        "RestartBudgetSpent": (
            "more ends than `spec.recovery.restartsWithoutProgress` without a step in between; "
            "look at the kinds in `status.failures`"
        ),
        "DeadlineExceeded": (
            "`spec.lifecycle.activeDeadlineSeconds` has passed; what was committed is there"
        ),
    },
}
"""By condition and reason. Complete and Failed share their reasons."""

LOSSES: Final[Mapping[FailureKind, str]] = {
    "configuration": "the job fails at once",
    "application": "the kubelet starts it again; the same at one step twice fails the job",
    "transient": (
        "started again; a pod in `CrashLoopBackOff` is replaced after 1 s, then 2, 4, at most 60 s"
    ),
    "disruption": "another pod is made; not counted",
}
"""What is done by itself when a container ends, by class."""

FOUND: Final[Mapping[str, str]] = {
    "Deleting": (
        "wait: what it owns is deleted after it; a pod of it may be committing. If it lasts, "
        "`kubectl get ppojob NAME -o yaml` names the finalizer that somebody has added"
    ),
    "OperatorSilent": (
        "see `kubectl -n ppojob-system get pods` and their logs: running jobs train on, but "
        "nothing is started, mended or ended until an operator is back"
    ),
    "OperatorBehind": (
        "wait a minute; then see the operator's log, whether it serves this namespace "
        "(`watchNamespaces` of the chart), and `ppojob_operator_queue_age_seconds`"
    ),
    "RanksMissing": (
        "the log of that pod says why: `kubectl ppojob logs NAME --role ROLE`; a rank that was "
        "killed is started again by itself"
    ),
    "StepStale": (
        "see what the controller waits for: `kubectl ppojob logs NAME --role controller`; "
        "a stage that hangs is ended after `spec.timeouts.stageSeconds`"
    ),
    "DeadlineNear": (
        "raise `spec.lifecycle.activeDeadlineSeconds`, or let it end with what is committed"
    ),
}
"""What is seen in the cluster and in no condition."""

UNKNOWN: Final = "docs/operations.md, of the version of the operator"


def remedy(condition: ConditionType, reason: str) -> str:
    """What to do about a condition's reason; an operator may be newer than this table."""
    # A job may fail by the reason of another condition: one that was never accepted.
    tables = (CONDITIONS[condition], *CONDITIONS.values())
    return next((table[reason] for table in tables if reason in table), UNKNOWN)
