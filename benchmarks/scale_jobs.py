"""Jobs by the hundred, on fake nodes, and the least that a client must do to make them.

A bare client sends bytes, drops the answers and counts objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ppojob_operator.build.objects import secret
from ppojob_operator.connection import from_kubeconfig
from ppojob_operator.kinds import CHILD_KINDS, JOB
from ppojob_operator.plan import plan
from ppojob_operator.reading import read_job
from ppojob_operator.reconcile import key_pair
from ppojob_operator.settings import Settings
from ppojob_operator.state import Create, CreateKeys, Manifest, Observed

CLAIM = "runs"
TAINT = "kwok.x-k8s.io/node"
"""Annotation by which kwok knows its nodes, and taint that keeps the pods of others away."""

LABEL = {"type": "kwok"}
_CONNECTIONS = 64
_PODS_A_NODE = 1_000
_AT_ONCE = 16
_OTHER_PODS = 5
_UID = "00000000-0000-0000-0000-000000000000"
_NAME = "job-00000"


class ClusterClient:
    """A client that makes nothing of what it is answered; use as an async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self._place = from_kubeconfig(kubeconfig)

    async def __aenter__(self) -> ClusterClient:
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._place.ssl or True)
        token = self._place.token()
        self._session = aiohttp.ClientSession(
            self._place.server,
            connector=connector,
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
            raise_for_status=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, path: str, body: bytes) -> bytes:
        """Make an object of prepared bytes; answers the API server's."""
        async with self._session.post(path, data=body) as answer:
            return await answer.read()

    async def create(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""
        made: dict[str, Any] = json.loads(await self.send(path, json.dumps(manifest).encode()))
        return made

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> None:
        """Apply an object, whoever made it."""
        query = {"fieldManager": "ppojob-benchmarks", "force": "true"}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        body = json.dumps(manifest).encode()
        async with self._session.patch(path, params=query, headers=headers, data=body) as answer:
            await answer.read()

    async def read(self, path: str) -> dict[str, Any]:
        """Read an object or a list."""
        async with self._session.get(path) as answer:
            read: dict[str, Any] = await answer.json()
            return read

    async def delete(self, path: str) -> None:
        """Delete an object, or a whole collection."""
        async with self._session.delete(path) as answer:
            await answer.read()

    async def count(self, path: str) -> int:
        """How many objects a collection has, at the cost of reading one of them."""
        listed = await self.read(f"{path}?limit=1")
        return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount") or 0)


@contextlib.asynccontextmanager
async def fake_nodes(
    client: ClusterClient, folder: Path, log: Path, pods: int
) -> AsyncIterator[None]:
    """Nodes that only the API server knows, for so many pods: kwok plays their kubelets.

    `folder` is `.cluster`, where kwok is. The nodes are gone behind the `with`.
    """
    names = [f"scale-{i}" for i in range(-(-pods // _PODS_A_NODE) + 1)]
    with log.open("wb") as out:
        kwok = subprocess.Popen(
            [
                folder / "bin" / "kwok",
                f"--kubeconfig={folder}/kubeconfig",
                f"--config={folder}/bin/kwok-stages.yaml",
                f"--manage-nodes-with-annotation-selector={TAINT}=fake",
                "--node-lease-duration-seconds=40",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={key: text for key, text in os.environ.items() if "proxy" not in key.lower()},
        )
    try:
        for name in names:
            await client.create("/api/v1/nodes", _node(name))
        yield
    finally:
        for name in names:
            # Deleting what is not there is no deed either.
            with contextlib.suppress(aiohttp.ClientResponseError):
                await client.delete(f"/api/v1/nodes/{name}")
        # kwok ends the last pods, so it goes behind them.
        await asyncio.sleep(1.0)
        kwok.terminate()
        kwok.wait(30)


def _node(name: str) -> dict[str, object]:
    room = {"cpu": "100k", "memory": "1Pi", "pods": str(_PODS_A_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {TAINT: "fake"}, "labels": LABEL},
        "spec": {"taints": [{"key": TAINT, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room, "phase": "Running"},
    }


def job(name: str, pods: int) -> dict[str, Any]:
    """A job of four StatefulSets: the controller, rollout, two of reference and two of reward."""
    actors = pods - _OTHER_PODS
    roles = {
        "actorRollout": {"replicas": actors},
        "reference": {"replicas": 2, "colocateWith": "none"},
        "reward": {"replicas": 2},
    }
    algorithm = {"type": "ppo", "promptsPerStep": 4 * actors, "samplesPerPrompt": 2}
    placement = {
        "image": "fake:1",
        "nodeSelector": LABEL,
        "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {"name": name},
        "spec": {
            "model": {"path": "/models/tiny"},
            "data": {"train": [{"path": "/data/train.jsonl"}]},
            "algorithm": {**algorithm, "kl": {"in": "loss"}},
            "steps": {"total": 8},
            "checkpoint": {"every": 2, "volume": {"claimName": CLAIM}},
            "roles": roles,
            "pods": [placement],
        },
    }


async def submit(
    client: ClusterClient, namespace: str, jobs: int, pods: int, prepared: Prepared | None = None
) -> None:
    """Make the jobs, as quickly as they are taken.

    Where they are prepared, make all their objects as well, without looking at anything.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        name = f"job-{index:05d}"
        async with slots:
            made = await client.create(JOB.path(namespace), job(name, pods))
            new = name.encode(), made["metadata"]["uid"].encode()
            for wave in prepared.waves if prepared else ():
                bodies = (
                    (path, body.replace(_NAME.encode(), new[0]).replace(_UID.encode(), new[1]))
                    for path, body in wave
                )
                await asyncio.gather(*(client.send(*each) for each in bodies))

    await asyncio.gather(*map(one, range(jobs)))


@dataclass(frozen=True)
class Prepared:
    """The objects of one job as bytes in which its name and uid are replaced.

    Attributes:
        waves: path and bytes of each; pods come of the last wave.
        kinds: how many objects of each kind a job has.
    """

    waves: tuple[tuple[tuple[str, bytes], ...], ...]
    kinds: Counter[str]


def prepare(namespace: str, pods: int) -> Prepared:
    """What the operator makes for a job, rendered by the operator's own plan."""
    manifest = job(_NAME, pods)
    now = datetime.datetime.now(datetime.UTC)
    manifest["metadata"] |= {
        "namespace": namespace,
        "uid": _UID,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    read = read_job(manifest)
    assert not read.problems, read.problems
    planned = plan(read, Observed(), Settings(), now)
    waves: list[list[Manifest]] = []
    for wave in planned.waves:
        objects: list[Manifest] = [one.manifest for one in wave if isinstance(one, Create)]
        for action in wave:
            if isinstance(action, CreateKeys):
                pairs = {role: key_pair() for role in action.templates}
                objects += [secret(one, role, pairs) for role, one in action.templates.items()]
        waves.append(objects)
    return Prepared(
        waves=tuple(
            tuple((CHILD_KINDS[one["kind"]].path(namespace), _bytes(one)) for one in wave)
            for wave in waves
            if wave
        ),
        kinds=Counter(one["kind"] for wave in waves for one in wave),
    )


def _bytes(manifest: Manifest) -> bytes:
    return json.dumps(manifest, separators=(",", ":")).encode()


async def children(client: ClusterClient, namespace: str, kinds: Counter[str]) -> Counter[str]:
    """How many objects of each kind of a job's there are."""
    counts = await asyncio.gather(
        *(client.count(CHILD_KINDS[kind].path(namespace)) for kind in kinds)  # type: ignore[index]
    )
    return Counter(dict(zip(kinds, counts, strict=True)))


async def all_made(
    client: ClusterClient, namespace: str, kinds: Counter[str], jobs: int, there: Counter[str]
) -> None:
    """Wait for all objects of all jobs, beside those that were there before."""
    wanted = Counter({kind: number * jobs + there[kind] for kind, number in kinds.items()})
    sets = CHILD_KINDS["StatefulSet"].path(namespace)
    while await client.count(sets) < wanted["StatefulSet"]:
        await asyncio.sleep(0.2)
    while not wanted <= await children(client, namespace, kinds):
        await asyncio.sleep(0.2)
