"""Poller of the supervisors of controller pods (docs/contract.md, port 7403).

Polling costs no request to the API server, and enqueues a job only if the answer changed.
"""

import asyncio

import aiohttp

from ppojob_api import contract
from ppojob_operator.cache import Cache
from ppojob_operator.reading import JobKey, read_report
from ppojob_operator.state import ControllerReport, Pod

_SECONDS = 3.0
_AT_ONCE = 64


class SupervisorPoller:
    """Polls the supervisor of every running job's controller."""

    def __init__(self, cache: Cache, poll_seconds: float) -> None:
        self._cache = cache
        self._poll_seconds = poll_seconds
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Poll until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                controllers = self._cache.controllers()
                await asyncio.gather(*(self._ask(session, *one) for one in controllers))
                await asyncio.sleep(self._poll_seconds)

    async def _ask(self, session: aiohttp.ClientSession, key: JobKey, pod: Pod) -> None:
        async with self._slots:
            report = await controller_report(session, pod)
        if report is not None:
            self._cache.update_report(key, report)


async def controller_report(
    session: aiohttp.ClientSession, pod: Pod, port: int = contract.PORT_HEALTH
) -> ControllerReport | None:
    """The report of a controller pod's supervisor; None without an answer."""
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with session.get(
            f"http://{host}:{port}/status", timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                return None
            return read_report(pod.uid, await answer.content.read(1 << 20))
    except (aiohttp.ClientError, TimeoutError, ValueError):
        # It is polled again; the state of its pod is observed separately.
        return None
