"""What an engine that lives in the trainer's process must leave as it found it."""

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_OWN = "VLLM_"


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the global CPU and CUDA generators of torch back where they stood.

    An engine draws from them even for rows that have a generator of their own; the trainer's
    sequence must not depend on how many steps a generation phase took.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Let nothing look for garbage: in thousands of modules there is none, and it takes seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Undo what starting an engine does to the process around it.

    Kept: torch's thread count and its very setter (engines replace it by one that does nothing),
    default type, default device and gradient mode, the generators of torch, NumPy and Python, and
    the environment, which child processes inherit (such as a preloaded library). Variables of its
    own the engine may set for itself.
    """
    set_num_threads = torch.set_num_threads
    num_threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    environment = dict(os.environ)
    try:
        with random_state_kept(), torch.set_grad_enabled(torch.is_grad_enabled()):
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
    """Bring `os.environ` back to `environment`, but for variables of the engine's own."""
    for name in [name for name in os.environ if name not in environment]:
        if not name.startswith(_OWN):
            del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value and not name.startswith(_OWN):
            os.environ[name] = value
