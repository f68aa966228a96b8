"""Deterministic torch settings; docs/adr/0059-the-same-bits-on-a-gpu.md."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def repeat_bits(device: torch.device) -> None:
    """Have torch compute the same bits each time, or refuse; before a GPU is first used."""
    torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Nothing here reads memory that was not written; filling it is a pass over all of it.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def any_kernels() -> Iterator[None]:
    """Let kernels be used that torch refuses, or replaces by slow ones, under `repeat_bits`."""
    was_strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_strict)
