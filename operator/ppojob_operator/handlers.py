"""The operator's process on kopf; the only module that imports it.

kopf provides the PPOJob event stream, start-up, shutdown and the liveness probe. Its change
handlers, daemons and finalizers are not used: actions follow from the observed state (`plan`), and
a job can be deleted while no operator runs.
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
    """Stores no last-handled configuration; only kopf's change handlers would need it.

    kopf's own storage copies every job twice per event.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """The part of a job that kopf compares: nothing."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """That part when the job was last handled: nothing."""

    def store(self, **_: Any) -> None:
        """Store that part: nothing."""


class Program:
    """The operator of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._operation: Operation | None = None
        self._stack = contextlib.AsyncExitStack()

    def registry(self) -> kopf.OperatorRegistry:
        """The handlers that kopf calls."""
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(login)
        kopf.on.startup(registry=registry)(self.start)
        kopf.on.cleanup(registry=registry)(self.stop)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self.on_event)
        kopf.on.probe(id="health", registry=registry)(self.probe)
        return registry

    async def start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Start the operator, before the first event is delivered."""
        # kopf writes no Kubernetes Events, only logs.
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = _NoState()
        settings.networking.request_timeout = 30
        settings.watching.inactivity_timeout = 80
        settings.process.ultimate_exiting_timeout = 20
        # Scanning lists namespaces and CustomResourceDefinitions, which needs more permissions.
        settings.scanning.disabled = True
        cluster = await self._stack.enter_async_context(Cluster(connect()))
        self._operation = await self._stack.enter_async_context(running(cluster, self._settings))

    async def stop(self, **_: Any) -> None:
        """Release the Lease and stop."""
        await self._stack.aclose()

    async def on_event(self, type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
        """Handle an event of the PPOJob stream."""
        if self._operation is not None:
            self._operation.on_job_event(type, dict(body))

    def probe(self, **_: Any) -> str:
        """The liveness probe: fails if a watch is stalled or no job is reconciled.

        Raises:
            RuntimeError: this replica should be restarted.
        """
        errors = self._operation.health_errors() if self._operation else []
        if errors:
            raise RuntimeError("; ".join(errors))
        return "ok"


def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """How kopf connects: by the pod's service account, else by the kubeconfig."""
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


def main() -> None:
    """Run the operator until it is terminated."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = read_settings()
    except ValueError as problem:
        sys.exit(str(problem))
    # kopf logs every event, and aiohttp every probe.
    for name in ("kopf.objects", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    if settings.metrics_port:
        start_http_server(settings.metrics_port)
    asyncio.run(
        kopf.operator(
            registry=Program(settings).registry(),
            # By default kopf asks for a user name, which the image does not have.
            identity=settings.identity,
            standalone=True,
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            liveness_endpoint=f"http://0.0.0.0:{settings.liveness_port}/healthz",
        )
    )
