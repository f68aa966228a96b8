"""The operator before an API server that refuses, forgets and falls silent, and beside another."""

import functools
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import job, wait_for_pods
from fault_proxy import Asked, FaultProxy, Faults, ProcessFault
from operator_lives import (
    PATIENCE_SECONDS,
    Restarter,
    duplicate_events,
    gone,
    mismatched_keys,
    objects,
    undisturbed,
)
from operator_replica import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600), pytest.mark.usefixtures("crd")]

EVERYTHING = Faults(
    statuses=(409, 410, 429, 500), share=0.2, stream_errors=(0, 410, 500), stream_share=0.05
)


@pytest.fixture(scope="module")
def made(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed operator makes of the job."""
    with undisturbed(cluster, tmp_path_factory.mktemp("made")):
        cluster.apply(job("sum"))
        is_made(cluster)
        found = objects(cluster)
        gone(cluster)
        return found


def is_made(cluster: Cluster) -> None:
    def says_why() -> bool:
        return cluster.read("ppojob", "sum", "{.status.reason}") == "Unschedulable"

    eventually(says_why, PATIENCE_SECONDS)


def is_as(cluster: Cluster, made: dict[str, Any]) -> None:
    """Wait until the objects of the job are as they must be."""
    eventually(lambda: objects(cluster) == made, PATIENCE_SECONDS)


def is_put_right(cluster: Cluster, made: dict[str, Any]) -> None:
    """Delete and edit objects of the job by hand, and wait until they are as they were."""
    # A job says Unschedulable of the pods that it has: one that was refused a StatefulSet too.
    is_as(cluster, made)
    cluster.kubectl("delete", "service", "sum-reward", "--wait=false")
    cluster.kubectl("delete", "rolebinding", "sum-controller")
    cluster.kubectl("scale", "statefulset", "sum-reward", "--replicas=0")
    policy = {"spec": {"policyTypes": ["Ingress", "Egress"]}}
    cluster.kubectl("patch", "networkpolicy", "sum-pods", f"--patch={json.dumps(policy)}")
    is_as(cluster, made)
    wait_for_pods(cluster, "sum", 4)


FAULTS = {
    "everything": EVERYTHING,
    "429": Faults(statuses=(429,), share=0.2),
    "500": Faults(statuses=(500,), share=0.2),
    # Writes alone are in conflict, and of these there are few.
    "409": Faults(statuses=(409,), share=0.5),
    "410": Faults(statuses=(410,), share=0.2, stream_errors=(410,), stream_share=0.2),
    "cut": Faults(stream_errors=(0,), stream_share=0.2),
    "slow": Faults(delay_seconds=1.5),
}


@pytest.mark.parametrize(
    "fault",
    [
        name if name == "everything" else pytest.param(name, marks=pytest.mark.long)
        for name in FAULTS
    ],
)
def test_it_comes_to_the_same_objects_whatever_it_is_answered(
    cluster: Cluster, proxy: FaultProxy, made: dict[str, Any], tmp_path: Path, fault: str
) -> None:
    proxy.faults = FAULTS[fault]
    with Restarter(cluster, proxy, tmp_path):
        cluster.apply(job("sum"))
        is_made(cluster)
        is_put_right(cluster, made)
        assert proxy.injected > 5 or fault == "slow"
        assert not mismatched_keys(cluster)
        gone(cluster)


def test_streams_that_have_fallen_silent_are_begun_anew(cluster, proxy, made, tmp_path) -> None:
    with Restarter(cluster, proxy, tmp_path) as restarter:
        cluster.apply(job("sum"))
        is_made(cluster)
        proxy.deafen()
        is_put_right(cluster, made)
        gone(cluster)
        # It was not started again: it has noticed by itself.
        assert restarter.lives == 1


def holder(cluster: Cluster) -> str:
    return cluster.read("lease", "ppojob-operator", "{.spec.holderIdentity}")


@pytest.mark.parametrize("at", [3, 14])
def test_a_frozen_leader_changes_nothing_when_it_thaws(cluster, proxy, made, tmp_path, at) -> None:
    first = Operator(Cluster(tmp_path, cluster.namespace), tmp_path, "first")
    eventually(lambda: holder(cluster) == "first", PATIENCE_SECONDS)
    second = Operator(cluster, tmp_path, "second")
    try:
        # Frozen in the middle of a job, with an answer on the way and other writes in its hands.
        freeze = functools.partial(first.process.send_signal, signal.SIGSTOP)
        proxy.fail_process(ProcessFault(at, behind=True, action=freeze))
        cluster.apply(job("sum"))
        assert proxy.has_failed(PATIENCE_SECONDS)
        eventually(lambda: holder(cluster) == "second", PATIENCE_SECONDS)
        is_made(cluster)
        is_as(cluster, made)
        proxy.fail_process(None)
        taken, asked = proxy.taken, proxy.counts[Asked("get", "leases")]
        first.process.send_signal(signal.SIGCONT)
        eventually(lambda: proxy.counts[Asked("get", "leases")] > asked + 1, PATIENCE_SECONDS)
        is_put_right(cluster, made)
        # A request whose connection was being made when it froze may still leave; it is not taken.
        assert proxy.taken == taken
        assert holder(cluster) == "second"
        assert not duplicate_events(cluster)
        assert not mismatched_keys(cluster)
        gone(cluster)
    finally:
        first.process.send_signal(signal.SIGCONT)
        first.end()
        second.end()


def test_a_job_that_was_replaced_while_no_operator_ran_gets_objects_of_its_own(
    cluster: Cluster, made: dict[str, Any], tmp_path: Path
) -> None:
    with undisturbed(cluster, tmp_path):
        cluster.apply(job("sum"))
        is_made(cluster)
    # Orphans are left, which the garbage collector takes for the job of before.
    cluster.kubectl("delete", "ppojob", "sum")
    cluster.apply(job("sum"))
    uid = cluster.read("ppojob", "sum", "{.metadata.uid}")
    with undisturbed(cluster, tmp_path):
        is_made(cluster)
        is_as(cluster, made)
        owners = {one["metadata"]["ownerReferences"][0]["uid"] for one in made.values()}
        assert owners == {"UID"} != {uid}
        gone(cluster)


def test_a_namespace_goes_with_its_jobs_and_the_operator_stays(cluster, made, tmp_path) -> None:
    doomed = Cluster(cluster.folder, f"{cluster.namespace}-doomed")
    cluster.kubectl("create", "namespace", doomed.namespace)
    both = f"{cluster.namespace},{doomed.namespace}"
    operator = Operator(cluster, tmp_path, "first", WATCH_NAMESPACES=both)
    try:
        doomed.apply(job("sum"))
        is_made(doomed)
        cluster.kubectl("delete", "namespace", doomed.namespace, "--timeout=300s")
        cluster.apply(job("sum"))
        is_made(cluster)
        is_as(cluster, made)
        gone(cluster)
        assert operator.process.poll() is None
    finally:
        operator.end()
