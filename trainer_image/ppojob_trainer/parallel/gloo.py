"""Gloo groups that listen where they are told to.

Torch's own backend of that name takes no options from Python: it listens at the address of the
host's name. So ours is registered beside it: the same groups, with `gloo_options`.
"""

import datetime
from typing import Any

import torch.distributed as dist

POD_GLOO = "pod_gloo"
"""Name of the backend."""


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


def _open(place: Any, options: Any) -> dist.ProcessGroupGloo:
    """A group with its options; without them, as somebody else opens it, with torch's own."""
    of_group = (place.store, place.group_rank, place.group_size)
    if options is None:
        return dist.ProcessGroupGloo(*of_group, timeout=place.timeout)
    return dist.ProcessGroupGloo(*of_group, options)


dist.Backend.register_backend(POD_GLOO, _open, extended_api=True, devices=["cpu"])
