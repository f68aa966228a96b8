"""A scheduler with the plugin Coscheduling places the pods of a job: all of them or none."""

from collections.abc import Iterator

import pytest
from cluster_access import Cluster
from gangs_on_cluster import never_hold_halves, operator_of, place_as_a_whole
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
    place_as_a_whole(cluster, TOGETHER, GPU, GROUP, why=GPU, look_again=look_again)


def test_two_gangs_that_fit_one_by_one_never_hold_halves(cluster, operator):
    never_hold_halves(cluster, TOGETHER, GPU, look_again)
