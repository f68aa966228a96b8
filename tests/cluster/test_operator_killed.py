"""The operator dies by SIGKILL at its writes to a real API server; another one ends what it began.

Whatever it dies at, the objects of the job are those that an operator makes to which nothing
happens, and its Secrets hold keys of one making.
"""

from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import job, pods
from fault_proxy import FaultProxy
from operator_lives import (
    PATIENCE_SECONDS,
    Kubelet,
    doors_that_do_not_open,
    objects,
    told_twice,
    undisturbed,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600), pytest.mark.usefixtures("crd")]

CREATIONS = 15
"""Of a job of three roles: 3 Secrets, 9 other objects, 3 StatefulSets."""
WRITES = CREATIONS + 2
"""An Event and a status as well."""


def wait(cluster: Cluster, reason: str, number: int) -> None:
    """Wait until the job says why it is where it is, and has so many pods."""

    def is_there() -> bool:
        said = cluster.read("ppojob", "sum", "{.status.reason}")
        return len(pods(cluster, "sum")) == number and said == reason

    eventually(is_there, PATIENCE_SECONDS)


def begin(cluster: Cluster) -> None:
    cluster.apply(job("sum"))
    wait(cluster, "Unschedulable", 4)


def live(cluster: Cluster) -> None:
    """A life with everything that the operator writes: made, suspended, resumed and edited."""
    begin(cluster)
    cluster.apply(job("sum", lifecycle={"suspend": True}))
    wait(cluster, "Asked", 0)
    cluster.apply(job("sum", steps={"total": 9}))
    wait(cluster, "Unschedulable", 4)


def in_the_end(cluster: Cluster) -> dict[str, Any]:
    """The objects of the job once an operator has nothing more to do, and the job gone."""
    wrong = doors_that_do_not_open(cluster, "sum")
    found = objects(cluster, "sum")
    cluster.kubectl("delete", "ppojob", "sum", "--cascade=foreground", "--timeout=300s")
    assert not wrong
    return found


@pytest.fixture(scope="module")
def begun(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed operator makes of a new job."""
    with undisturbed(cluster, tmp_path_factory.mktemp("begun")):
        begin(cluster)
        return in_the_end(cluster)


@pytest.fixture(scope="module")
def lived(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed operator leaves of a job behind its whole life."""
    with undisturbed(cluster, tmp_path_factory.mktemp("lived")):
        live(cluster)
        return in_the_end(cluster)


def test_an_operator_that_lives_for_one_write_makes_the_job(cluster, proxy, begun, tmp_path):
    with Kubelet(cluster, proxy, tmp_path, strike=(1, True)) as kubelet:
        begin(cluster)
        eventually(lambda: objects(cluster, "sum") == begun, PATIENCE_SECONDS)
        told = told_twice(cluster, "sum")
        assert in_the_end(cluster) == begun
        assert kubelet.deaths >= CREATIONS
        assert not told


@pytest.mark.long
@pytest.mark.parametrize("strike", [(1, True), (2, False)], ids=["behind", "before"])
def test_an_operator_that_lives_for_one_write_leads_a_job_through_its_life(
    cluster: Cluster,
    proxy: FaultProxy,
    lived: dict[str, Any],
    tmp_path: Path,
    strike: tuple[int, bool],
) -> None:
    with Kubelet(cluster, proxy, tmp_path, strike) as kubelet:
        live(cluster)
        eventually(lambda: objects(cluster, "sum") == lived, PATIENCE_SECONDS)
        assert in_the_end(cluster) == lived
        assert kubelet.deaths > CREATIONS


def dies_once(
    cluster: Cluster, proxy: FaultProxy, begun: dict[str, Any], tmp_path: Path, strike: Any
) -> None:
    with Kubelet(cluster, proxy, tmp_path, strike, most=1) as kubelet:
        begin(cluster)
        eventually(lambda: objects(cluster, "sum") == begun, PATIENCE_SECONDS)
        told = told_twice(cluster, "sum")
        assert in_the_end(cluster) == begun
        assert kubelet.deaths == 1
        assert not told


@pytest.mark.parametrize("strike", [(1, False), (2, True), (13, False), (16, True)])
def test_another_operator_ends_what_was_begun(cluster, proxy, begun, tmp_path, strike) -> None:
    dies_once(cluster, proxy, begun, tmp_path, strike)


@pytest.mark.long
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
def test_another_operator_ends_what_was_begun_at_any_write(
    cluster: Cluster,
    proxy: FaultProxy,
    begun: dict[str, Any],
    tmp_path: Path,
    at: int,
    behind: bool,
) -> None:
    dies_once(cluster, proxy, begun, tmp_path, (at, behind))
