"""Nodes and pods that only the API server knows: kwok plays their kubelets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from cluster_client import ClusterClient

TAINT = "kwok.x-k8s.io/node"
"""Annotation by which kwok knows its nodes, and taint that keeps the pods of others away."""

LABEL = {"type": "kwok"}
_NODES = "/api/v1/nodes"
_PODS_A_NODE = 1_000


@contextlib.asynccontextmanager
async def fake_nodes(
    client: ClusterClient, folder: Path, log: Path, pods: int
) -> AsyncIterator[None]:
    """Nodes that can take so many pods, gone behind the `with`.

    Args:
        client: of the cluster.
        folder: `.cluster`, where kwok is.
        log: takes what kwok says.
        pods: that must find room.
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
            await client.create(_NODES, _node(name))
        yield
    finally:
        for name in names:
            # Deleting what is not there is no deed either.
            with contextlib.suppress(aiohttp.ClientResponseError):
                await client.delete(f"{_NODES}/{name}")
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
