"""Many jobs at once on fake nodes, against the real API server.

    make cluster-up
    python benchmarks/operator_scale.py [--jobs 100] [--pods 8] [--steady-seconds 60] [--no-bare]

1. A bare client submits the jobs to a namespace that no operator serves, and writes all their
   objects: nothing is read, planned or watched.
2. The same jobs are submitted to a namespace that an operator serves. It makes the objects, sees
   all pods ready (kwok plays the kubelets) and says so in every status.
3. A steady minute; then the operator is killed and its other replica takes over; then that one is
   killed as well, and one is started anew.

Says each figure as soon as it is known, and prints a table; the last line is a JSON object of them.
The cluster is left as it was, but for the definition of the resource, which is applied first and
stays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from operator_process import OperatorProcess, requests
from rich.console import Console
from rich.table import Table
from scale_jobs import CLAIM, ClusterClient, all_made, children, fake_nodes, prepare, submit

from ppojob_api.crd import definition
from ppojob_operator.kinds import CHILD_KINDS, JOB, POD

ROOT = Path(__file__).resolve().parent.parent
PORT = 18_380
NAMESPACES = BARE, OPERATED = "scale-bare", "scale-operated"

TARGETS = {
    "ratio": "1.4 x",  # children made, times a bare client
    "memory_max_mb": "250 MB",
    "failover_seconds": "10 s",  # from a kill until the other replica leads
    "restart_seconds": "30 s",  # from a start until all jobs are reconciled
    "steady_writes": "0",
    "noop_requests": "0",
}


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, pause: float = 0.2) -> None:
    """Wait for something.

    Raises:
        TimeoutError: it did not come.
    """
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(pause)


async def define(client: ClusterClient) -> None:
    """Apply the definition of the resource, and wait until it is served."""
    wanted = definition()
    name = wanted["metadata"]["name"]
    await client.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", wanted)

    async def is_served() -> bool:
        with contextlib.suppress(aiohttp.ClientResponseError):
            await client.count(JOB.path(OPERATED))
            return True
        return False

    await until(is_served, 60)


@contextlib.asynccontextmanager
async def namespaces(client: ClusterClient) -> AsyncIterator[None]:
    """The two namespaces with a claim each, and nothing of them behind the `with`."""
    size, access = {"storage": "1Mi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    try:
        for name in NAMESPACES:
            await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
            volume = {
                **access,
                "capacity": size,
                "hostPath": {"path": f"/tmp/{name}", "type": "DirectoryOrCreate"},
                "claimRef": {"namespace": name, "name": CLAIM},
            }
            head = {"metadata": {"name": name}, "spec": volume}
            await client.create("/api/v1/persistentvolumes", head)
            wanted = {**access, "resources": {"requests": size}, "volumeName": name}
            await client.create(
                f"/api/v1/namespaces/{name}/persistentvolumeclaims",
                {"metadata": {"name": CLAIM}, "spec": wanted},
            )
        yield
    finally:
        for name in NAMESPACES:
            await emptied(client, name)
            for path in (f"/api/v1/namespaces/{name}", f"/api/v1/persistentvolumes/{name}"):
                with contextlib.suppress(aiohttp.ClientResponseError):
                    await client.delete(path)
            await until(functools.partial(_is_gone, client, name), 300, 1.0)


async def _is_gone(client: ClusterClient, namespace: str) -> bool:
    try:
        await client.read(f"/api/v1/namespaces/{namespace}")
    except aiohttp.ClientResponseError as problem:
        return problem.status == 404
    return False


async def emptied(client: ClusterClient, namespace: str) -> None:
    """Delete all jobs of a namespace, and wait until the garbage collector has all they owned."""
    # The garbage collector takes objects one by one, and a collection is soon gone.
    paths = [kind.path(namespace) for kind in (JOB, CHILD_KINDS["StatefulSet"], POD)]

    async def is_empty() -> bool:
        for path in paths:
            # A large one takes longer than one request may, and is asked for again.
            with contextlib.suppress(aiohttp.ClientError):
                await client.delete(f"{path}?gracePeriodSeconds=0")
        left = await children(client, namespace, prepare(namespace, 8).kinds)
        jobs_and_pods = await client.count(JOB.path(namespace))
        jobs_and_pods += await client.count(POD.path(namespace))
        return not jobs_and_pods and not left["StatefulSet"] and not left["Secret"]

    await until(is_empty, 1_800, 1.0)
    # Events would make the next list of the namespace a long one.
    await client.delete(f"/api/v1/namespaces/{namespace}/events")


async def bare(client: ClusterClient, jobs: int, pods: int) -> dict[str, float]:
    """What a bare client needs."""
    prepared = prepare(BARE, pods)
    there = await children(client, BARE, prepared.kinds)
    started, cpu = time.monotonic(), time.process_time()
    await submit(client, BARE, jobs, pods, prepared)
    await all_made(client, BARE, prepared.kinds, jobs, there)
    seconds = time.monotonic() - started
    writes = jobs * (1 + prepared.kinds.total())
    return {
        "bare_seconds": seconds,
        "bare_cpu_seconds": time.process_time() - cpu,
        "bare_writes_per_second": writes / seconds,
    }


async def operated(
    client: ClusterClient, operator: OperatorProcess, jobs: int, pods: int
) -> dict[str, float]:
    """What the operator needs for the same, and until it has said that all pods are ready."""
    kinds = prepare(OPERATED, pods).kinds
    there = await children(client, OPERATED, kinds)
    started, cpu = time.monotonic(), operator.cpu_seconds
    submitting = asyncio.create_task(submit(client, OPERATED, jobs, pods))
    await all_made(client, OPERATED, kinds, jobs, there)
    await submitting
    made = {
        "children_seconds": time.monotonic() - started,
        "children_cpu_seconds": operator.cpu_seconds - cpu,
    }

    async def are_ready() -> bool:
        samples = await operator.samples()
        return samples.get("ppojob_operator_pods_ready_seconds_count", 0) >= jobs

    await until(are_ready, 3_600, 0.5)
    ready = time.monotonic() - started
    listed = await client.read(JOB.path(OPERATED))
    assert len(listed["items"]) == jobs
    assert all(_is_ready(one) for one in listed["items"])
    await _quiet(operator)
    writes = requests(await operator.samples(), writes_only=True)
    return {
        **made,
        "ready_seconds": ready,
        "ready_cpu_seconds": operator.cpu_seconds - cpu,
        "objects_a_job": kinds.total(),
        "writes_a_job": sum(writes.values()) / jobs,
    }


def _is_ready(listed: dict[str, Any]) -> bool:
    conditions = listed["status"]["conditions"]
    return any((one["type"], one["status"]) == ("PodsReady", "True") for one in conditions)


async def _quiet(operator: OperatorProcess) -> None:
    """Wait until what its own last writes have woken is looked at."""
    seen: list[float] = [-1.0]

    async def is_quiet() -> bool:
        samples = await operator.samples()
        now = sum(v for k, v in samples.items() if k.startswith("ppojob_operator_reconciles_total"))
        was, seen[0] = seen[0], now
        return was == now

    await until(is_quiet, 300, 3.0)


async def steady(operator: OperatorProcess, seconds: float) -> dict[str, float]:
    """Writes of jobs to which nothing happens."""
    before, cpu = requests(await operator.samples()), operator.cpu_seconds
    await asyncio.sleep(seconds)
    after = requests(await operator.samples())
    now, most = operator.memory_mb
    return {
        "steady_writes": sum(after.values()) - sum(before.values()),
        "steady_cpu_share": (operator.cpu_seconds - cpu) / seconds,
        "memory_mb": now,
        "memory_max_mb": most,
    }


async def taken_over(
    standby: OperatorProcess, killed: OperatorProcess, jobs: int
) -> dict[str, float]:
    """Kill the leader; how long until the other replica leads, and has looked at every job."""

    # A replica asks for the Lease once it has listed everything: then it stands by.
    async def stands_by() -> bool:
        return "ppojob_operator_api_requests_total|200|Lease|get" in await standby.samples()

    await until(stands_by, 300)
    killed.end(signal.SIGKILL)
    started = time.monotonic()
    await until(functools.partial(leads, standby), 300, 0.1)
    failover = time.monotonic() - started
    await until(functools.partial(has_looked, standby, jobs), 600)
    return {"failover_seconds": failover, "takeover_seconds": time.monotonic() - started}


async def restarted(
    start: Callable[[str, int], OperatorProcess], killed: OperatorProcess, jobs: int
) -> dict[str, float]:
    """Kill the only one; how long until one that is started then has looked at every job."""
    killed.end(signal.SIGKILL)
    started = time.monotonic()
    successor = start("successor", PORT + 20)
    try:
        await until(functools.partial(has_looked, successor, jobs), 600)
        seconds = time.monotonic() - started
        asked = requests(await successor.samples())
        return {
            "restart_seconds": seconds,
            "restart_cpu_seconds": successor.cpu_seconds,
            "restart_memory_mb": successor.memory_mb[1],
            "noop_requests": sum(asked.values()),
        }
    finally:
        successor.end()


async def leads(operator: OperatorProcess) -> bool:
    return (await operator.samples()).get("ppojob_operator_leader") == 1.0


async def has_looked(operator: OperatorProcess, jobs: int) -> bool:
    samples = await operator.samples()
    return samples.get("ppojob_operator_reconciles_total|unchanged", 0) >= jobs


async def measure(arguments: argparse.Namespace, logs: Path) -> dict[str, float]:
    folder = ROOT / ".cluster"
    jobs, pods = arguments.jobs, arguments.pods

    def start(name: str, port: int) -> OperatorProcess:
        return OperatorProcess(folder / "kubeconfig", OPERATED, name, port, logs / f"{name}.log")

    # Whoever ends this run ends it by its `finally`s, so that nothing is left on the cluster.
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    figures: dict[str, float] = {}

    def know(**more: float) -> None:
        figures.update(more)
        for name, value in more.items():
            print(f"{name}: {value:.2f}", file=sys.stderr, flush=True)

    know(jobs=jobs, pods=pods)
    async with (
        ClusterClient(folder / "kubeconfig") as client,
        fake_nodes(client, folder, logs / "kwok.log", jobs * pods),
        namespaces(client),
    ):
        await define(client)
        if not arguments.no_bare:
            know(**await bare(client, jobs, pods))
            await emptied(client, BARE)
        operator = start("first", PORT)
        replicas = [operator]
        try:
            await until(functools.partial(leads, operator), 120)
            know(**await operated(client, operator, jobs, pods))
            know(**await steady(operator, arguments.steady_seconds))
            replicas.append(start("standby", PORT + 10))
            know(**await taken_over(replicas[1], operator, jobs))
            know(**await restarted(start, replicas[1], jobs))
        finally:
            for replica in replicas:
                replica.end()
    if "bare_seconds" in figures:
        know(ratio=figures["children_seconds"] / figures["bare_seconds"])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Scale of the operator, on fake nodes.")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--pods", type=int, default=8, help="pods a job, 6 or more")
    parser.add_argument("--steady-seconds", type=float, default=60.0)
    parser.add_argument("--no-bare", action="store_true", help="leave the comparison out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        figures = asyncio.run(measure(arguments, Path(logs)))
    table = Table("figure", "value", "target", title=f"{arguments.jobs} jobs")
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}", TARGETS.get(name, ""))
    Console(width=100).print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
