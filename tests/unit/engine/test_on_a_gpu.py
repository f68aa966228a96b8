from dataclasses import replace

import pytest
import torch
import training_cases
from training_cases import CASES, LoraSpec, run_case

from ppojob_trainer.models.experts import grouped_product
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.parallel.offload import HostBuffers
from ppojob_trainer.parallel.world import World

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

LOOSE = {"bfloat16", "dropout", "dropout_recomputed", "a_gradient_that_is_not_finite"}
"""Cases that draw other numbers than a processor, or round otherwise, or have none to compare."""


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    training_cases.save_models(folder)
    return folder


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("name", CASES)
def test_an_update_is_that_of_a_processor_and_has_the_same_bits_each_time(name, models, strict_gpu):
    case = CASES[name].alone
    ours, again = (run_case(case, models, World.alone(strict_gpu)) for _ in range(2))
    assert_equal(ours, again)
    if name in LOOSE:
        return
    theirs = run_case(case, models, World.alone())
    for key in theirs:
        if not key.startswith("weight/"):  # AdamW makes the sign of a rounding error a step
            tolerance = {"rtol": 2e-3, "atol": 5e-5}
            torch.testing.assert_close(
                ours[key].cpu(), theirs[key], **tolerance, msg=lambda m, k=key: f"{k}: {m}"
            )


@pytest.mark.parametrize("model", ["tied", "qwen2", "qwen3_moe", "gemma2"])
@pytest.mark.parametrize("lora", [None, LoraSpec(rank=3)])
def test_recomputed_and_offloaded_the_bits_are_those_of_a_plain_update(
    model, lora, models, strict_gpu
):
    world = World.alone(strict_gpu)
    case = replace(CASES["bfloat16"], model=model, lora=lora)
    rows, runs = training_cases.rows_of_step(), []
    for recompute, offload in ((False, ()), (False, ()), (True, ("optimizer", "activations"))):
        loaded = training_cases.load(case, models, world)
        changed = replace(case, recompute=recompute)
        engine = training_cases.make_engine(loaded, changed, world, offload)
        torch.manual_seed(0)
        for _ in range(2):
            engine.update(rows, training_cases.objective())
        runs.append({name: tensor.clone() for name, tensor in named_full_tensors(loaded)})
    assert all(tensor.is_cuda for tensor in runs[0].values())
    assert_equal(runs[0], runs[1])
    assert_equal(runs[0], runs[2])


def test_what_leaves_a_gpu_gives_its_memory_back_and_comes_back_as_it_was(strict_gpu):
    base = torch.randn(2**22, device=strict_gpu)
    part, kept, host = base[100:500].view(20, 20).t(), base.clone(), HostBuffers()
    before = torch.cuda.memory_allocated()
    host.offload([base])
    assert torch.cuda.memory_allocated() <= before - 2**24
    assert host.view(base).is_pinned()
    assert torch.equal(host.view(part), kept[100:500].view(20, 20).t().cpu())
    host.load([part])
    assert torch.equal(base, kept)
    assert torch.equal(part, kept[100:500].view(20, 20).t())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_grouped_products_are_those_of_each_group(dtype, limit, strict_gpu):
    torch.manual_seed(0)
    counts = torch.tensor([5, 0, 17, 8])
    rows = torch.randn(30, 64).to(strict_gpu, dtype).requires_grad_()
    matrices = [torch.randn(48, 64).to(strict_gpu, dtype).requires_grad_() for _ in counts]
    ends = counts.cumsum(0, dtype=torch.int32).to(strict_gpu)
    factors = torch.randn(30, 48).to(strict_gpu, dtype)

    def computed(products):
        found = torch.autograd.grad((products * factors).sum(), [rows, *matrices])
        return [products, *found]

    runs = [computed(grouped_product(rows, ends, matrices)) for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))
    pieces = rows.split(counts.tolist())
    by_one = torch.cat([piece @ m.mT for piece, m in zip(pieces, matrices, strict=True)])
    for ours, theirs in zip(runs[0], computed(by_one), strict=True):
        assert (ours - theirs).norm() <= limit * theirs.norm() + 1e-6
