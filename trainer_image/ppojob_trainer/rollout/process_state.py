"""Process state that an engine in the trainer's process must not change."""

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_OWN = "VLLM_"


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore torch's global generators, which an engine uses in each step, after the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection: with thousands of modules it takes seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the process state that starting an engine changes.

    That is torch's thread count and setter (engines replace it), default dtype and device, gradient
    mode, the generators of torch, NumPy and Python, and the environment except for `VLLM_`
    variables.
    """
    set_num_threads = torch.set_num_threads
    num_threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    environment = dict(os.environ)
    try:
        with preserve_random_state(), torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != num_threads:
            set_num_threads(num_threads)
        torch.set_default_dtype(dtype)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        _restore(environment)


def _restore(environment: dict[str, str]) -> None:
    """Reset `os.environ` to `environment`, except for variables of the engine's own."""
    for name in [name for name in os.environ if name not in environment]:
        if not name.startswith(_OWN):
            del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value and not name.startswith(_OWN):
            os.environ[name] = value
