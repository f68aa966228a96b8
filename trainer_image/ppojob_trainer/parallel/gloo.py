"""How gloo is told where to listen and how long to wait."""

import datetime
from typing import Any

import torch.distributed as dist


def gloo_options(address: str, timeout_seconds: float) -> Any:
    """Options of a gloo group; each call opens a listening socket, which lives as long as they do.

    Bound to the pod's own address: `GLOO_SOCKET_IFNAME=lo` would put all pods of a laptop on
    127.0.0.1.

    Args:
        address: IP address of the pod.
        timeout_seconds: limit of opening the group and of each of its operations.
    """
    gloo: Any = dist.ProcessGroupGloo  # its stubs lack `_Options`
    options = gloo._Options()
    options._timeout = datetime.timedelta(seconds=timeout_seconds)
    options._devices = [gloo.create_device(hostname=address, lazy_init=False)]
    return options
