"""The operator dies before or behind one of its writes to a real API server; another goes on."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cluster_access import Cluster
from operator_jobs import job_manifest

from ppojob_operator.connection import from_kubeconfig
from ppojob_operator.errors import UnavailableError
from ppojob_operator.http_cluster import HttpCluster
from ppojob_operator.kinds import CHILD_KINDS, JOB, Kind
from ppojob_operator.operation import running
from ppojob_operator.settings import Settings
from ppojob_operator.state import Manifest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

T = TypeVar("T")
WRITES = 16
"""Of a job of three roles: 3 Secrets, 9 other objects, 3 StatefulSets and the status."""


class DyingCluster(HttpCluster):
    """Answers nothing any more from its n-th write on; the Lease aside, which outlives it."""

    def __init__(self, kubeconfig: Path, dies_at: int | None, *, behind: bool) -> None:
        super().__init__(from_kubeconfig(kubeconfig))
        self._dies_at = dies_at
        self._behind = behind
        self._writes = 0
        self.is_dead = asyncio.Event()

    async def create(self, manifest: Manifest) -> Manifest:
        if manifest["kind"] == "Lease":
            return await super().create(manifest)
        return await self._write(super().create(manifest))

    async def apply(self, manifest: Manifest, uid: str) -> Manifest:
        return await self._write(super().apply(manifest, uid))

    async def apply_status(self, manifest: Manifest) -> Manifest:
        return await self._write(super().apply_status(manifest))

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        await self._write(super().delete(kind, namespace, name, uid, grace_seconds))

    async def _write(self, write: Awaitable[T]) -> T:
        self._writes += 1
        dies = self._dies_at is not None and self._writes >= self._dies_at
        if dies and not (self._behind and self._writes == self._dies_at):
            self.is_dead.set()
            write.close()  # type: ignore[attr-defined]
            raise UnavailableError("dead")
        answer = await write
        if dies:
            self.is_dead.set()
            raise UnavailableError("dead")
        return answer


async def operate(cluster: Cluster, seconds: float, dies_at: int | None, *, behind: bool) -> None:
    """Run an operator until it has died, or for as long as it may take to be done."""
    settings = Settings(
        namespace=cluster.namespace,
        watch_namespaces=cluster.namespace,
        identity=f"dies-at-{dies_at}",
        lease_seconds=4.0,
    )
    dying = DyingCluster(cluster.folder / "kubeconfig", dies_at, behind=behind)
    async with dying, running(dying, settings):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(dying.is_dead.wait(), seconds)


async def settled(cluster: Cluster) -> dict[str, list[Manifest]]:
    """The objects of the job once there are three StatefulSets and a status."""
    async with HttpCluster(from_kubeconfig(cluster.folder / "kubeconfig")) as access:
        for _ in range(300):
            job = await access.get(JOB, cluster.namespace, "sum")
            if job.get("status", {}).get("startTime"):
                break
            await asyncio.sleep(0.1)
        found: dict[str, list[Manifest]] = {}
        for name, kind in CHILD_KINDS.items():
            pages = access.pages(kind, cluster.namespace, "ppojob.dev/job=sum")
            found[name] = [item async for page in pages for item in page.items]
        return found


def names(found: dict[str, list[Manifest]]) -> dict[str, list[str]]:
    """Names of the objects; the configuration's ends in a digest of the job's uid."""
    return {
        kind: sorted(one["metadata"]["name"].split("-config-")[0] for one in items)
        for kind, items in found.items()
    }


def public_keys(secrets: list[Manifest]) -> set[str]:
    return {base64.b64decode(one["data"]["public.json"]).decode() for one in secrets}


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("dies_at", [1, 2, 4, 9, 12, 15, WRITES])
def test_another_operator_ends_what_was_begun(cluster: Cluster, dies_at: int, behind: bool) -> None:
    file = Path(__file__).parents[2] / "crds" / "ppojobs.yaml"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={file}")
    manifest: dict[str, Any] = job_manifest()
    manifest["metadata"] = {"name": "sum"}
    manifest["spec"]["pods"] = [{"image": "localhost/ppojob/no-such-image:1"}]
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))

    async def story() -> dict[str, list[Manifest]]:
        await operate(cluster, 30.0, dies_at, behind=behind)
        successor = asyncio.create_task(operate(cluster, 120.0, None, behind=False))
        try:
            return await settled(cluster)
        finally:
            successor.cancel()
            await asyncio.gather(successor, return_exceptions=True)

    try:
        found = asyncio.run(story())
        roles = ["sum-actor-rollout", "sum-controller", "sum-reward"]
        assert names(found) == {
            "ConfigMap": ["sum"],
            "NetworkPolicy": ["sum-pods"],
            "PodDisruptionBudget": ["sum-pods"],
            "Role": ["sum-controller"],
            "RoleBinding": ["sum-controller"],
            "Secret": roles,
            "Service": roles,
            "ServiceAccount": ["sum-controller"],
            "StatefulSet": roles,
        }
        # Keys of two makings would not open each other's doors.
        assert len(public_keys(found["Secret"])) == 1
    finally:
        cluster.kubectl("delete", "ppojob", "sum", "--cascade=foreground", "--timeout=60s")
