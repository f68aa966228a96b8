"""The operator's process on kopf; the only module that imports it.

kopf gives the PPOJob stream, start-up, shutdown and probes. Its change handlers, daemons and
finalizers are not used: actions follow from the observed state (`plan`), and a job can be deleted
while no operator runs.
"""

import asyncio
import contextlib
import logging
import sys
from typing import Any

import kopf  # noqa: TID251
from prometheus_client import disable_created_metrics, start_http_server

from ppojob_api.well_known import GROUP, PLURAL, VERSION
from ppojob_operator.cluster import Cluster
from ppojob_operator.connection import connect
from ppojob_operator.operation import Operation, running
from ppojob_operator.settings import Settings, read_settings


class _NoState(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Stores nothing about handled jobs, since kopf only delivers events here.

    kopf's own storage copies every job twice per event, to find changes that nobody asks for.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """The part of a job in which changes matter."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """That part when it was handled last."""

    def store(self, **_: Any) -> None:
        """Keep that part."""


class Program:
    """The operator of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._operation: Operation | None = None
        self._stack = contextlib.AsyncExitStack()

    def registry(self) -> kopf.OperatorRegistry:
        """What kopf is to call."""
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(login)
        kopf.on.startup(registry=registry)(self.start)
        kopf.on.cleanup(registry=registry)(self.stop)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self.see)
        kopf.on.probe(id="troubles", registry=registry)(self.troubles)
        return registry

    async def start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Begin to operate, before the first event comes."""
        # Events are ours to write, and kopf's own logs go to the log alone.
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = _NoState()
        settings.networking.request_timeout = 30
        settings.watching.inactivity_timeout = 80
        settings.process.ultimate_exiting_timeout = 20
        # Scanning would list namespaces and definitions, which needs rights beyond a job's.
        settings.scanning.disabled = True
        cluster = await self._stack.enter_async_context(Cluster(connect()))
        self._operation = await self._stack.enter_async_context(running(cluster, self._settings))

    async def stop(self, **_: Any) -> None:
        """Give up the Lease and end."""
        await self._stack.aclose()

    async def see(self, type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
        """Something about a job is new: only which one matters, the rest is read off its state."""
        if self._operation is not None:
            self._operation.see_job(type, dict(body))

    def troubles(self, **_: Any) -> str:
        """The liveness probe: fails when this replica hears nothing or gets nothing done.

        Raises:
            RuntimeError: it should be started again.
        """
        troubles = self._operation.troubles() if self._operation else []
        if troubles:
            raise RuntimeError("; ".join(troubles))
        return "none"


def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """How kopf connects: as a pod, else by the kubeconfig."""
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


def main() -> None:
    """Run the operator until it is told to end."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = read_settings()
    except ValueError as problem:
        sys.exit(str(problem))
    # kopf tells of every event that it hands on, and probes come every few seconds.
    for name in ("kopf.objects", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    if settings.metrics_port:
        start_http_server(settings.metrics_port)
    asyncio.run(
        kopf.operator(
            registry=Program(settings).registry(),
            # Left alone, kopf asks for the name of a user who has none in the image.
            identity=settings.identity,
            standalone=True,
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            liveness_endpoint=f"http://0.0.0.0:{settings.liveness_port}/healthz",
        )
    )
