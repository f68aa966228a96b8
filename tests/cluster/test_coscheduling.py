"""A scheduler with the plugin Coscheduling places the pods of a job: all of them or none."""

from collections.abc import Iterator

import node_gpus
import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import says, wait_for_pods
from gangs_on_cluster import (
    SMALL,
    admitted,
    gang,
    never_hold_halves,
    nodes,
    operator_of,
    placed,
)
from placing_controllers import Coscheduling

pytestmark = [pytest.mark.cluster, pytest.mark.placing, pytest.mark.timeout(3600)]

GROUP = "podgroups.scheduling.x-k8s.io"
GPU = "example.com/gpu-of-test-coscheduling"
"""A device that no other test of the node asks for."""
TOGETHER = {"type": "coscheduling"}


@pytest.fixture(scope="module")
def operator(cluster, crd, tmp_path_factory) -> Iterator[None]:
    with (
        Coscheduling(cluster, tmp_path_factory.mktemp("coscheduling")),
        operator_of(cluster, tmp_path_factory.mktemp("operators"), "coscheduling"),
    ):
        yield
        cluster.kubectl("delete", "ppojobs", "--all")


def look_again(cluster: Cluster, name: str) -> None:
    """Change a PodGroup: the plugin does not look for room in nodes that change."""
    cluster.kubectl("annotate", GROUP, f"ppojob-{name}", "look=again", "--overwrite")


def test_a_gang_is_placed_as_a_whole(cluster, operator):
    roles = {"actorRollout": {"replicas": 2, "gpusPerReplica": 1}, "reward": {"replicas": 2}}
    whole = gang("whole", TOGETHER, roles=roles, pods=[{**SMALL, "gpuResource": GPU}])
    with node_gpus.offered(cluster, 1, resource=GPU):
        cluster.apply(whole)
        wait_for_pods(cluster, "whole", 5)
        says(cluster, "whole", "GangPending")
        # One of the two actors would find a place, and so would all other roles.
        eventually(lambda: GPU in admitted(cluster, "whole")["message"])
        assert nodes(cluster, "whole") == [""] * 5
    with node_gpus.offered(cluster, 2, resource=GPU):
        look_again(cluster, "whole")
        placed(cluster, "whole", 5)
        # The group is for those that come back as well.
        cluster.kubectl("delete", "pod", "whole-reward-0", "--wait=false")
        placed(cluster, "whole", 5)
        cluster.apply({**whole, "spec": {**whole["spec"], "lifecycle": {"suspend": True}}})
        wait_for_pods(cluster, "whole", 0)
        eventually(lambda: "NotFound" in cluster.outcome("get", GROUP, "ppojob-whole"))
        cluster.apply({**whole, "spec": {**whole["spec"], "lifecycle": {"suspend": False}}})
        placed(cluster, "whole", 5)
    cluster.kubectl("delete", "ppojob", "whole")
    eventually(lambda: "NotFound" in cluster.outcome("get", GROUP, "ppojob-whole"))


def test_two_gangs_that_fit_one_by_one_never_hold_halves(cluster, operator):
    never_hold_halves(cluster, TOGETHER, GPU, look_again)
