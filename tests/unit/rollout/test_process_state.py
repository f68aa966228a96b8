import contextlib
import gc
import os
import random

import numpy as np
import pytest
import torch

from ppojob_trainer.rollout.process_state import gc_disabled, preserve_process_state


@pytest.mark.parametrize(("more_threads", "fails"), [(1, False), (0, True)])
def test_a_rude_guest_leaves_no_mark(more_threads, fails, monkeypatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    draws = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    environment = dict(os.environ)
    with contextlib.suppress(OSError), preserve_process_state():
        setter(threads + more_threads)
        torch.set_num_threads = lambda number: None
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        os.environ.update(CHANGED="2", LD_PRELOAD="libguest.so", VLLM_WORD="stays")
        del os.environ["KEPT"]
        if fails:
            raise OSError("guest")
    assert torch.set_num_threads is setter
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), draws[0])
    assert random.getstate() == draws[1]
    assert (np.random.get_state()[1] == draws[2]).all()
    assert os.environ.pop("VLLM_WORD") == "stays"
    assert dict(os.environ) == environment


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_looked_for_as_before(is_enabled: bool) -> None:
    assert gc.isenabled()
    try:
        if not is_enabled:
            gc.disable()
        with contextlib.suppress(OSError), gc_disabled():
            assert not gc.isenabled()
            raise OSError("guest")
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable()
