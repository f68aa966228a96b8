"""The least that a client of an API server can do: send bytes, drop the answer, count objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from ppojob_operator.connection import from_kubeconfig


class ClusterClient:
    """A client that makes nothing of what it is answered; use as an async context manager.

    Args:
        kubeconfig: of the cluster.
        connections: most requests at a time.
    """

    def __init__(self, kubeconfig: Path, connections: int = 64) -> None:
        self._place = from_kubeconfig(kubeconfig)
        self._connections = connections

    async def __aenter__(self) -> ClusterClient:
        connector = aiohttp.TCPConnector(limit=self._connections, ssl=self._place.ssl or True)
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
