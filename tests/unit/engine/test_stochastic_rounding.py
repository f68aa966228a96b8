"""Rounding by chance, and AdamW whose moments are rounded so, against a literal form."""

import copy
import math
from typing import Any

import pytest
import torch
from tiny_models import make_model
from torch import nn

from ppojob_api.v1alpha1.training import OptimizerSpec
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    load_optimizer_tensors,
    optimizer_boxes,
    optimizer_tensors,
    step_by_weight,
)
from ppojob_trainer.engine.stochastic_rounding import round_into
from ppojob_trainer.parallel.boxes import Box
from ppojob_trainer.parallel.offload import HostBuffers

RATE, DECAY, BETAS, EPSILON = 0.1, 0.01, (0.9, 0.999), 1e-8


def rounded(values: torch.Tensor, what: str, box: Box | None = None) -> torch.Tensor:
    target = torch.empty(values.shape, dtype=torch.bfloat16)
    round_into(target, values, box or Box.whole(tuple(values.shape)), what)
    return target


def test_numbers_go_to_their_neighbours_as_often_as_they_lie_near_them() -> None:
    low, high = torch.tensor([1.0, -1.0078125], dtype=torch.bfloat16)
    values = torch.tensor([[1.0, 1.0 + 2**-9, 1.0 + 3 * 2**-10, -1.0 - 2**-10, 0.0, 1e-30]])
    draws = 4000
    found = torch.cat([rounded(values, f"draw {n}").float() for n in range(draws)])
    assert set(found[:, 0].tolist()) == {float(low)}
    assert set(found[:, 1].tolist()) == {1.0, 1.0078125}
    assert set(found[:, 3].tolist()) == {-1.0, float(high)}
    assert set(found[:, 4].tolist()) == {0.0}
    ups = (found[:, 1:4].abs() > 1.0).double().mean(0)
    four_deviations = 4 * 0.5 / math.sqrt(draws)
    assert ups.tolist() == pytest.approx([2 / 8, 3 / 8, 1 / 8], abs=four_deviations)
    assert found[:, 5].double().mean().item() == pytest.approx(1e-30, rel=1e-4)


def test_chances_of_neighbours_in_place_and_time_have_nothing_to_do_with_each_other() -> None:
    values = torch.full((300, 400), 1.0 + 2**-8)
    first, second = (rounded(values, f"w/{n}").float() > 1.0 for n in range(2))
    pairs = [(first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])]
    for one, other in pairs:
        assert (one == other).double().mean().item() == pytest.approx(0.5, abs=0.007)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5), (3_000_000, 2)])
def test_a_part_is_rounded_as_within_the_whole(shape: tuple[int, ...]) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    whole = rounded(values, "w")
    box = Box(shape, tuple(size // 3 for size in shape), shape)
    assert torch.equal(rounded(values[box.slices], "w", box), whole[box.slices])
    first = (0,) * len(shape)
    assert torch.equal(rounded(values[first], "w"), whole[first])  # a scalar is a place, too


def test_adamw_of_such_moments_is_its_formula_with_moments_rounded() -> None:
    """Two weights, one of them without a gradient in a step; with host memory the same."""
    spec = OptimizerSpec(
        learning_rate=RATE,
        weight_decay=DECAY,
        betas=BETAS,
        epsilon=EPSILON,
        moments_dtype="bfloat16",
    )
    results = []
    for host in (None, HostBuffers()):
        generator = torch.Generator().manual_seed(0)
        model = nn.ParameterDict(
            {name: torch.randn(4, 3, generator=generator) for name in ("first", "second")}
        )
        weights = {one: name for name, one in model.named_parameters()}
        expected = {name: one.detach().double() for name, one in model.items()}
        moments = {name: (torch.zeros(4, 3), torch.zeros(4, 3)) for name in model}
        optimizer = build_optimizer(model, spec)
        for step in range(5):
            for weight, name in weights.items():
                weight.grad = torch.randn(4, 3, generator=generator)
                m, v = (low.float() for low in moments[name])
                m = BETAS[0] * m + (1 - BETAS[0]) * weight.grad
                v = BETAS[1] * v + (1 - BETAS[1]) * weight.grad**2
                ahead = m / (1 - BETAS[0] ** (step + 1))
                root = (v / (1 - BETAS[1] ** (step + 1))).sqrt() + EPSILON
                expected[name] = (
                    expected[name] * (1 - RATE * DECAY) - RATE * (ahead / root).double()
                )
                keys = ("exp_avg", "exp_avg_sq")
                moments[name] = tuple(
                    rounded(moment, f"{name}/{step}/{key}")
                    for key, moment in zip(keys, (m, v), strict=True)
                )
            step_by_weight(optimizer, host, weights, step)
        for weight, name in weights.items():
            torch.testing.assert_close(weight.double(), expected[name], rtol=1e-4, atol=1e-5)
            assert optimizer.state[weight]["exp_avg_sq"].dtype == torch.bfloat16
        results.append(torch.cat([*model.values()]))
    assert torch.equal(*results)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_step_of_a_weight_looks_at_no_other(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a step of a mixture with 20,000 matrices would look at 400 million."""
    model = make_model()
    optimizer = build_optimizer(model, OptimizerSpec(type=kind, learning_rate=RATE))
    looked_at: list[int] = []
    step = optimizer.step

    def counted() -> None:
        looked_at.append(sum(len(group["params"]) for group in optimizer.param_groups))
        step()

    monkeypatch.setattr(optimizer, "step", counted)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    step_by_weight(optimizer)
    (group,) = optimizer.param_groups
    assert looked_at == [1] * len(list(model.parameters())) == [1] * len(group["params"])


def test_a_second_moment_falls_as_slowly_as_it_should() -> None:
    """Rounded to the nearest it would stay at 1 for good."""
    spec = OptimizerSpec(learning_rate=RATE, moments_dtype="bfloat16")
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = build_optimizer(nn.ParameterList([weight]), spec)
    weight.grad = torch.full_like(weight, 1000**0.5)
    for step in range(500):
        step_by_weight(optimizer, None, {weight: "w"}, step)
        weight.grad = torch.zeros_like(weight)
    mean = optimizer.state[weight]["exp_avg_sq"].double().mean().item()
    assert mean == pytest.approx(0.999**499, rel=0.01)


@pytest.mark.parametrize(
    "kind", [{"type": "adamw"}, {"type": "muon"}, {"type": "sgd"}, {"amsgrad": True}]
)
def test_every_optimizer_goes_on_from_moments_that_were_kept(kind: dict[str, Any]) -> None:
    spec = OptimizerSpec(**kind, learning_rate=RATE, moments_dtype="bfloat16")

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        names = {weight: name for name, weight in model.named_parameters()}
        for number in numbers:
            generator = torch.Generator().manual_seed(number)
            for weight in names:
                weight.grad = torch.randn(weight.shape, generator=generator)
            step_by_weight(optimizer, None, names, number)

    first = make_model()
    optimizer = build_optimizer(first, spec)
    step(first, optimizer, range(2))
    kept = {name: one.clone() for name, one in optimizer_tensors(first, optimizer).items()}
    low = {one.dtype for name, one in kept.items() if not name.endswith("/step")}
    assert (low, set(kept)) == ({torch.bfloat16}, set(optimizer_boxes(first, spec)))
    second = copy.deepcopy(first)
    again = build_optimizer(second, spec)
    load_optimizer_tensors(second, spec, again, kept)
    step(first, optimizer, range(2, 4))
    step(second, again, range(2, 4))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
