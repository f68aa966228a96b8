"""The world of a role: ranks 0..N-1 of one epoch, and nobody else.

It must exist before the rollout engine is made: vLLM takes the default group as its own world, so
no other role may ever be in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore


@contextmanager
def world_of_one(device: torch.device) -> Iterator[None]:
    """Join the world of a role that has a single rank; nobody needs to be met for that.

    Args:
        device: `cpu` (gloo) or `cuda` (nccl).
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
