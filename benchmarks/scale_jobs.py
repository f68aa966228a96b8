"""Jobs by the hundred: submitted, and their objects written by a bare client for comparison."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from cluster_client import ClusterClient
from fake_nodes import LABEL, TAINT

from ppojob_operator.build.objects import secret
from ppojob_operator.kinds import CHILD_KINDS, JOB
from ppojob_operator.plan import plan
from ppojob_operator.reading import read_job
from ppojob_operator.reconcile import key_pair
from ppojob_operator.settings import Settings
from ppojob_operator.state import Create, MakeKeys, Manifest, Observed

CLAIM = "runs"
_AT_ONCE = 16
_OTHER_PODS = 5
_UID = "00000000-0000-0000-0000-000000000000"
_NAME = "job-00000"


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


def job_name(index: int) -> str:
    return f"job-{index:05d}"


async def submit(client: ClusterClient, namespace: str, jobs: int, pods: int) -> None:
    """Make the jobs, as quickly as they are taken."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        async with slots:
            await client.create(JOB.path(namespace), job(job_name(index), pods))

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
            if isinstance(action, MakeKeys):
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


async def write_bare(
    client: ClusterClient, namespace: str, jobs: int, pods: int, prepared: Prepared
) -> None:
    """Make the jobs and all their objects, without looking at anything."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        async with slots:
            name = job_name(index)
            made = await client.create(JOB.path(namespace), job(name, pods))
            uid = made["metadata"]["uid"].encode()
            for wave in prepared.waves:
                await asyncio.gather(
                    *(
                        client.send(
                            path,
                            body.replace(_NAME.encode(), name.encode()).replace(_UID.encode(), uid),
                        )
                        for path, body in wave
                    )
                )

    await asyncio.gather(*map(one, range(jobs)))


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
