"""How the controller of a job is, asked of its pod's supervisor (docs/contract.md, port 7403)."""

import aiohttp
from pydantic import BaseModel, ValidationError

from ppojob_api import contract
from ppojob_operator.conditions import inert
from ppojob_operator.state import ControllerReport, Pod

_SECONDS = 3.0


class _PodStatus(BaseModel):
    """What of `/status` concerns the operator."""

    phase: str
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0


async def controller_report(
    session: aiohttp.ClientSession, pods: tuple[Pod, ...]
) -> ControllerReport | None:
    """What the supervisor of the first pod that has an address says; None without an answer.

    Args:
        session: to ask with.
        pods: the controller's.
    """
    pod = next((pod for pod in pods if pod.address and pod.phase == "Running"), None)
    if pod is None:
        return None
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    url = f"http://{host}:{contract.PORT_HEALTH}/status"
    try:
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
            if answer.status != 200:
                return None
            status = _PodStatus.model_validate_json(await answer.content.read(1 << 20))
    except (aiohttp.ClientError, TimeoutError, ValidationError):
        # A supervisor that cannot be asked now is asked again; its pod's state is judged by itself.
        return None
    return ControllerReport(
        pod.uid, status.phase, inert(status.reason), status.exit_code, status.restarts
    )
