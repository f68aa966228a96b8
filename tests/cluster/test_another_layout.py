"""Another layout for a suspended job: what an API server lets through, and operators that die."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import job, says
from fault_proxy import FaultProxy
from operator_lives import (
    PATIENCE_SECONDS,
    Restarter,
    gone,
    mismatched_keys,
    objects,
    undisturbed,
    wait,
)
from operator_replica import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_200), pytest.mark.usefixtures("crd")]

OTHER: dict[str, Any] = {
    "actorRollout": {"replicas": 2, "ranksPerReplica": 2, "parallelism": {"sequence": 2}},
    "rollout": {"replicas": 3},
    "reward": {"replicas": 1},
}
NUMBER = 7
"""Pods under the other layout."""
SUSPENDED: dict[str, Any] = {"lifecycle": {"suspend": True}}
WHEN = "only while the job is suspended and has no pods; kubectl ppojob suspend NAME --wait"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rollout": {"temperature": 0.5}}, "spec.rollout decides the weights, but for parallelism"),
    ({"rollout": {"engineArguments": {"seed": 3}}}, "spec.rollout decides the weights"),
    ({"rollout": {"maxModelTokens": 4096}}, "spec.rollout decides the weights"),
    ({"training": {"sharePrompts": False}}, "spec.training decides the weights, but for micro"),
    ({"judge": {"path": "/models/judge"}}, "spec.judge decides the weights, but for gpuMemory"),
    ({"algorithm": {"promptsPerStep": 8}}, "spec.algorithm decides the weights and cannot change"),
    ({"roles": {"actorRollout": {"gpusPerReplica": 1}}}, "spec.roles.actorRollout.gpusPerReplica"),
]
LET_THROUGH: list[dict[str, Any]] = [
    {"roles": OTHER},
    {
        "roles": {"actorRollout": {"ranksPerReplica": 2}},
        "rollout": {"parallelism": {"tensor": 2}, "gpuMemoryShare": 0.6, "enforceEager": True},
    },
    {"rollout": {"kvCacheGib": 1.5, "maxSequences": 8, "maxBatchedTokens": 4096}},
    {"training": {"microBatchTokens": 4096, "activationCheckpointing": True}},
    {"training": {"reshardAfterForward": False, "logprobChunkTokens": 0}},
]


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> Iterator[Operator]:
    one = Operator(cluster, tmp_path, "only")
    yield one
    one.end()


def patch(name: str, spec: dict[str, Any]) -> tuple[str, ...]:
    return ("patch", "ppojob", name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")


def in_the_end(cluster: Cluster) -> dict[str, Any]:
    """The objects of the job, whatever its generation, once they are at rest; the job goes."""
    wrong, found = mismatched_keys(cluster), at_rest(cluster)
    gone(cluster)
    assert not wrong
    return found


def at_rest(cluster: Cluster) -> dict[str, Any]:
    text = json.dumps(objects(cluster))
    found: dict[str, Any] = json.loads(
        re.sub(r'"ppojob.dev/generation": "\d+"', '"ppojob.dev/generation": "1"', text)
    )
    return found


@pytest.fixture(scope="module")
def made_so(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an operator makes of a job that had the other layout from the start."""
    with undisturbed(cluster, tmp_path_factory.mktemp("made")):
        cluster.apply(job("sum", roles=OTHER))
        wait(cluster, "Unschedulable", NUMBER)
        return in_the_end(cluster)


def test_edits_are_for_a_job_without_pods_and_never_for_what_decides_the_weights(cluster, operator):
    cluster.apply(job("edited"))
    says(cluster, "edited", "Unschedulable")
    for spec, why in REFUSED[:-1]:
        words = cluster.refused(*patch("edited", spec))
        assert why in words
        assert WHEN not in words  # which would be told in vain
    for spec in LET_THROUGH:
        assert WHEN in cluster.refused(*patch("edited", spec))
        # To suspend it by the same edit is too late for its pods.
        assert WHEN in cluster.refused(*patch("edited", {**spec, **SUSPENDED}))
    cluster.kubectl(*patch("edited", SUSPENDED))
    says(cluster, "edited", "JobSuspended")
    for spec, why in REFUSED:
        assert why in cluster.refused(*patch("edited", spec))
    for spec in LET_THROUGH:
        cluster.kubectl(*patch("edited", spec), "--dry-run=server")
    cluster.kubectl("delete", "ppojob", "edited")


def relaid(cluster: Cluster) -> None:
    """A job that is suspended and let go on under the other layout."""
    cluster.apply(job("sum"))
    wait(cluster, "Unschedulable", 4)
    cluster.kubectl(*patch("sum", SUSPENDED))
    wait(cluster, "JobSuspended", 0)
    cluster.kubectl(*patch("sum", {"roles": OTHER, "lifecycle": {"suspend": False}}))
    wait(cluster, "Unschedulable", NUMBER)


def test_an_operator_that_lives_for_two_writes_brings_a_job_to_another_layout(
    cluster: Cluster, proxy: FaultProxy, made_so: dict[str, Any], tmp_path: Path
) -> None:
    with Restarter(cluster, proxy, tmp_path, kill_at=(2, True)) as restarter:
        relaid(cluster)
        eventually(lambda: at_rest(cluster) == made_so, PATIENCE_SECONDS)
        told = cluster.kubectl("get", "events", "--field-selector=reason=LayoutChanged")
        assert "new pods: controller 1, actorRollout 2, rollout 3, reward 1" in told
        assert in_the_end(cluster) == made_so
        assert restarter.deaths > 12


@pytest.mark.long
@pytest.mark.parametrize("kill_at", [(1, True), (2, False), (3, True)], ids=str)
def test_whenever_an_operator_dies(cluster, proxy, made_so, tmp_path, kill_at):
    with Restarter(cluster, proxy, tmp_path, kill_at):
        relaid(cluster)
        eventually(lambda: at_rest(cluster) == made_so, PATIENCE_SECONDS)
        assert in_the_end(cluster) == made_so
