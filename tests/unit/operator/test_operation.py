import asyncio
import dataclasses
from typing import Any

from operator_jobs import SETTINGS, job_manifest
from patience import until
from simulated_cluster import SimulatedCluster

from ppojob_operator.operation import Operation, running

FAST = dataclasses.replace(SETTINGS, lease_seconds=0.8, namespace="system", resync_seconds=0.5)


def phase(cluster: SimulatedCluster) -> str:
    status: dict[str, Any] = cluster.objects["PPOJob", "lab", "sum"].get("status", {})
    return str(status.get("phase"))


async def test_two_replicas_make_one_set_of_objects(cluster: SimulatedCluster) -> None:
    other = dataclasses.replace(FAST, identity="other")
    async with running(cluster, FAST) as one, running(cluster, other) as two:
        await until(lambda: one.leadership.is_held or two.leadership.is_held)
        manifest = cluster.put(job_manifest())
        for replica in (one, two):
            replica.on_job_event("ADDED", manifest)
        await until(lambda: len(cluster.of("Pod")) == 4)
        cluster.ready()
        await until(lambda: phase(cluster) == "Starting")
    made = [write for write in cluster.writes if write[0] == "create" and write[1] != "Event"]
    assert len(made) == len(set(made))


async def test_a_job_that_the_stream_missed_is_found(cluster: SimulatedCluster) -> None:
    cluster.put(job_manifest())
    async with running(cluster, FAST) as operation:
        await until(lambda: len(cluster.of("Pod")) == 4)
        cluster.remove("PPOJob", "lab", "sum")
        # The stream never says so; the next resync sees it.
        await until(lambda: not operation.cache.job_keys())
        assert not cluster.of("StatefulSet")


async def test_a_deleted_child_comes_back_by_its_event(cluster: SimulatedCluster) -> None:
    cluster.put(job_manifest())
    slow = dataclasses.replace(FAST, resync_seconds=600.0)
    async with running(cluster, slow):
        await until(lambda: len(cluster.of("Pod")) == 4)
        await asyncio.sleep(0.1)
        cluster.remove("Service", "lab", "sum-reward")
        await until(lambda: ("Service", "lab", "sum-reward") in cluster.objects)


async def test_an_operation_that_broke_is_in_trouble(cluster: SimulatedCluster) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("a bug")

    cluster.pages = broken  # type: ignore[method-assign,assignment]
    async with running(cluster, FAST) as operation:
        await until(lambda: bool(operation.health_errors()))


async def test_a_stalled_watch_is_a_health_error(cluster) -> None:
    operation = Operation(cluster, FAST)
    assert operation.health_errors() == []
    operation.reflectors[0].last_heard -= 1_000
    assert len(operation.health_errors()) == 1
