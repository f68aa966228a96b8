"""Asks the supervisors of controller pods for their state (docs/contract.md, port 7403).

Asking costs no request to the API server, and wakes a job only when the answer is a new one.
"""

import asyncio

import aiohttp
from pydantic import BaseModel, ValidationError

from ppojob_api import contract
from ppojob_operator.cache import Cache
from ppojob_operator.conditions import inert
from ppojob_operator.reading import JobKey
from ppojob_operator.state import ControllerReport, Pod

_SECONDS = 3.0
_AT_ONCE = 64


class _PodStatus(BaseModel):
    """What of `/status` concerns the operator."""

    phase: str
    reason: str = ""
    exit_code: int | None = None


class Supervisors:
    """Asks the supervisor of every running job's controller, again and again."""

    def __init__(self, cache: Cache, poll_seconds: float) -> None:
        self._cache = cache
        self._poll_seconds = poll_seconds
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                controllers = self._cache.controllers()
                await asyncio.gather(*(self._ask(session, *one) for one in controllers))
                await asyncio.sleep(self._poll_seconds)

    async def _ask(self, session: aiohttp.ClientSession, key: JobKey, pod: Pod) -> None:
        async with self._slots:
            report = await controller_report(session, pod)
        if report is not None:
            self._cache.see_report(key, report)


async def controller_report(
    session: aiohttp.ClientSession, pod: Pod, port: int = contract.PORT_HEALTH
) -> ControllerReport | None:
    """What the supervisor of a controller's pod says; None without an answer."""
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with session.get(
            f"http://{host}:{port}/status", timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                return None
            status = _PodStatus.model_validate_json(await answer.content.read(1 << 20))
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        # A supervisor that cannot be asked now is asked again; its pod's state is judged by itself.
        return None
    return ControllerReport(pod.uid, status.phase, inert(status.reason), status.exit_code)
