"""The operator dies by SIGKILL at its writes to a real API server; another one ends what it began.

Whatever it dies at, the objects of the job are those that an operator makes to which nothing
happens, and its Secrets hold keys of one making.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import job
from fault_proxy import FaultProxy
from operator_lives import (
    PATIENCE_SECONDS,
    Restarter,
    duplicate_events,
    gone,
    mismatched_keys,
    objects,
    undisturbed,
    wait,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600), pytest.mark.usefixtures("crd")]

CREATIONS = 15
"""Of a job of three roles: 3 Secrets, 9 other objects, 3 StatefulSets."""
WRITES = CREATIONS + 2
"""An Event and a status as well."""
SHORT = {(1, False), (2, True), (13, False), (16, True)}
"""Writes at which an operator dies in every run of the tests."""


def begin(cluster: Cluster) -> None:
    cluster.apply(job("sum"))
    wait(cluster, "Unschedulable", 4)


def live(cluster: Cluster) -> None:
    """A life with everything that the operator writes: made, suspended, resumed and edited."""
    begin(cluster)
    cluster.apply(job("sum", lifecycle={"suspend": True}))
    wait(cluster, "JobSuspended", 0)
    cluster.apply(job("sum", steps={"total": 9}))
    wait(cluster, "Unschedulable", 4)


def in_the_end(cluster: Cluster) -> dict[str, Any]:
    """The objects of the job once an operator has nothing more to do, and the job gone."""
    wrong = mismatched_keys(cluster)
    found = objects(cluster)
    gone(cluster)
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


def deaths(
    cluster: Cluster, begun: dict[str, Any], proxy: FaultProxy, tmp_path: Path, *how: Any
) -> int:
    """How often the operator has died when the objects of the job are as they must be."""
    with Restarter(cluster, proxy, tmp_path, *how) as restarter:
        begin(cluster)
        eventually(lambda: objects(cluster) == begun, PATIENCE_SECONDS)
        told = duplicate_events(cluster)
        assert in_the_end(cluster) == begun
        assert not told
        return restarter.deaths


def test_an_operator_that_lives_for_one_write_makes_the_job(cluster, proxy, begun, tmp_path):
    assert deaths(cluster, begun, proxy, tmp_path, (1, True)) >= CREATIONS


@pytest.mark.long
@pytest.mark.parametrize("kill_at", [(1, True), (2, False)], ids=["behind", "before"])
def test_an_operator_that_lives_for_one_write_leads_a_job_through_its_life(
    cluster, proxy, lived, tmp_path, kill_at
):
    with Restarter(cluster, proxy, tmp_path, kill_at) as restarter:
        live(cluster)
        eventually(lambda: objects(cluster) == lived, PATIENCE_SECONDS)
        assert in_the_end(cluster) == lived
        assert restarter.deaths > CREATIONS


@pytest.mark.parametrize(
    "kill_at",
    [
        pytest.param(kill_at, marks=() if kill_at in SHORT else pytest.mark.long)
        for kill_at in itertools.product(range(1, WRITES + 1), (False, True))
    ],
    ids=str,
)
def test_another_operator_ends_what_was_begun(cluster, proxy, begun, tmp_path, kill_at) -> None:
    """Before any write, and behind it."""
    assert deaths(cluster, begun, proxy, tmp_path, kill_at, 1) == 1
