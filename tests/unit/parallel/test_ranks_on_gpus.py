"""Worlds of ranks that have GPUs, or share one, against one rank on a GPU: updates by NCCL."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training_cases
import training_ranks
from training_cases import ALL_LAYOUTS, CASES, rows_of_rank, rows_of_step, run_case
from training_cover import AGAIN, ON_GPUS
from training_ranks import assert_equal, results, under

from ppojob_trainer.parallel.world import World

pytestmark = [pytest.mark.gpu, pytest.mark.processes, pytest.mark.timeout(1_200)]

PAIRS = [(layout, name) for layout, cases in ON_GPUS.items() for name in cases]
EXACT = [pair for pair in PAIRS if CASES[pair[1]].autocast == "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("worlds")
    training_cases.save_models(root)
    program = [sys.executable, training_ranks.__file__, root, "gpu", *ON_GPUS]
    done = subprocess.run(program, capture_output=True, text=True, timeout=1_000)
    assert done.returncode == 0, done.stderr[-4_000:]
    return root


@functools.cache
def alone(folder: Path, name: str, device: object):
    found = run_case(CASES[name].alone, folder, World.alone(device))
    return {key: tensor.cpu() for key, tensor in found.items()}


@pytest.mark.parametrize(("layout", "name"), PAIRS)
def test_ranks_agree_and_compute_the_same_bits_each_time(folder, layout, name):
    first = results(folder, layout, name)
    for rank in range(ALL_LAYOUTS[layout].size):
        found = results(folder, layout, name, rank)
        for prefix in ("stats/", "weight/"):
            assert_equal(under(found, prefix), under(first, prefix))
        if name in AGAIN:
            assert_equal(results(folder, layout, f"again-{name}", rank), found)


@pytest.mark.parametrize(("layout", "name"), EXACT)
def test_ranks_compute_what_one_does(folder, layout, name, strict_gpu):
    expected, found = alone(folder, name, strict_gpu), results(folder, layout, name)
    # Towers multiply the rounding of float32.
    for prefix, limit in (("gradient/", 1e-2 if CASES[name].seeing else 1e-4), ("weight/", 1e-3)):
        those = under(expected, prefix)
        for key, tensor in under(found, prefix).items():
            assert (tensor - those[key]).norm() <= limit * those[key].norm(), key
    everything = rows_of_step(long=CASES[name].long)
    for rank in range(ALL_LAYOUTS[layout].size):
        rows = rows_of_rank(CASES[name].owners, rank, ALL_LAYOUTS[layout])
        predicted = results(folder, layout, name, rank)["logprobs"]
        wanted = expected["logprobs"][everything.token_index(rows)]
        torch.testing.assert_close(predicted, wanted, rtol=0, atol=1e-4)
