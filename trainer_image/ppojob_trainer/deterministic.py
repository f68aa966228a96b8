"""Deterministic torch kernels (docs/adr/0059-the-same-bits-on-a-gpu.md)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def make_deterministic(device: torch.device) -> None:
    """Make torch use deterministic kernels, or raise; call it before the first use of a GPU."""
    torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # No code reads uninitialized memory, and filling it costs a pass over all of it.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def nondeterministic_kernels() -> Iterator[None]:
    """Allow nondeterministic kernels in the block, despite `make_deterministic`."""
    was_strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_strict)
