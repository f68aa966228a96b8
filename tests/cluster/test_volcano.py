"""Volcano's own scheduler and controllers place the pods of a job: all of them or none."""

import json
from collections.abc import Iterator

import pytest
from cluster_access import eventually
from cluster_jobs import says, wait_for_pods
from gangs_on_cluster import (
    SMALL,
    admitted,
    fake_nodes,
    gang,
    never_hold_halves,
    nodes,
    operator_of,
    place_as_a_whole,
    placed,
)
from placing_controllers import Volcano

pytestmark = [pytest.mark.cluster, pytest.mark.placing, pytest.mark.timeout(3600)]

GROUP = "podgroups.scheduling.volcano.sh"
GPU = "example.com/gpu-of-test-volcano"
"""A device that no other test of the node asks for."""


@pytest.fixture(scope="module")
def operator(cluster, crd, tmp_path_factory) -> Iterator[None]:
    with (
        Volcano(cluster, tmp_path_factory.mktemp("volcano")),
        operator_of(cluster, tmp_path_factory.mktemp("operators"), "volcano"),
    ):
        yield
        cluster.kubectl("delete", "ppojobs", "--all")


def test_a_gang_is_placed_as_a_whole_by_volcanos_scheduler(cluster, operator):
    place_as_a_whole(cluster, {"type": "volcano"}, GPU, GROUP, why="NotEnoughResources")


def test_two_gangs_that_fit_one_by_one_never_hold_halves(cluster, operator):
    never_hold_halves(cluster, {"type": "volcano"}, GPU)


def test_a_job_crosses_no_higher_tier_of_the_network_than_it_may(cluster, operator):
    head = {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode"}
    tiers = {
        "leaf-a": (1, "Node", ["node-a"]),
        "leaf-b": (1, "Node", ["node-b"]),
        "spine": (2, "HyperNode", ["leaf-a", "leaf-b"]),
    }
    for name, (tier, kind, members) in tiers.items():
        below = [{"type": kind, "selector": {"exactMatch": {"name": one}}} for one in members]
        cluster.apply(
            {**head, "metadata": {"name": name}, "spec": {"tier": tier, "members": below}}
        )
    roles = {"actorRollout": {"replicas": 2, "gpusPerReplica": 1}}
    with fake_nodes(cluster, {"node-a": {}, "node-b": {}}, {GPU: "1"}):
        for tier in ("1", "2"):
            annotations = {"volcano.sh/network-topology-highest-tier": tier}
            together = {"podOverrides": {"metadata": {"annotations": annotations}}}
            pods = [{**SMALL, "gpuResource": GPU, **together}]
            cluster.apply(gang(f"tier-{tier}", {"type": "volcano"}, roles=roles, pods=pods))
            wait_for_pods(cluster, f"tier-{tier}", 4)
            if tier == "2":
                placed(cluster, "tier-2")
            else:
                says(cluster, "tier-1", "GangPending")
                assert nodes(cluster, "tier-1") == [""] * 4
            cluster.kubectl("delete", "ppojob", f"tier-{tier}")
    cluster.kubectl("delete", "hypernode", *tiers)


def test_a_queue_takes_no_more_than_its_capability(cluster, operator):
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    spec = {"weight": 1, "capability": {"cpu": "30m"}}
    cluster.apply({**head, "metadata": {"name": "narrow"}, "spec": spec})
    cluster.apply(gang("queued", {"type": "volcano", "volcano": {"queue": "narrow"}}))
    wait_for_pods(cluster, "queued", 4)
    says(cluster, "queued", "GangPending")
    eventually(lambda: "NotEnoughResources" in admitted(cluster, "queued")["message"])
    assert nodes(cluster, "queued") == [""] * 4
    wider = json.dumps({"spec": {"capability": {"cpu": "40m"}}})
    kind = "queues.scheduling.volcano.sh"
    cluster.kubectl("patch", kind, "narrow", "--type=merge", f"--patch={wider}")
    placed(cluster, "queued")
    cluster.kubectl("delete", "ppojob", "queued")
