import json
import math
from pathlib import Path

import pytest
import torch
from tiny_models import make_model
from torch import Tensor, nn
from transformers import get_scheduler

from ppojob_api.v1alpha1.training import OptimizerSpec
from ppojob_trainer.engine.muon import orthogonal
from ppojob_trainer.engine.optimizer import build_optimizer, clip_gradients, learning_rate
from ppojob_trainer.parallel.world import World

VERL = json.loads(
    (Path(__file__).parents[1] / "algorithms" / "verl_numbers.json").read_text(encoding="utf-8")
)
COSINE = OptimizerSpec(
    learning_rate=3.0, warmup_steps=2, schedule="cosine", min_learning_rate_ratio=0.1
)
RATES = {
    "constant after a linear warm-up from zero": (
        OptimizerSpec(learning_rate=8.0, warmup_steps=4),
        {0: 0.0, 1: 2.0, 2: 4.0, 3: 6.0, 4: 8.0, 5: 8.0, 6: 8.0},
    ),
    "the peak at once without a warm-up": (OptimizerSpec(learning_rate=8.0), {0: 8.0}),
    "a cosine that falls to its minimum and stays": (
        COSINE,
        {
            **{0: 0.0, 1: 1.5, 2: 3.0, 4: 0.3 + 2.7 * (1 + math.cos(math.pi / 4)) / 2},
            **{6: 1.65, 10: 0.3, 25: 0.3},
        },
    ),
    "a warm-up of a share of the job, rounded down": (
        OptimizerSpec(learning_rate=6.0, warmup_ratio=0.39),
        {0: 0.0, 1: 2.0, 2: 4.0, 3: 6.0, 9: 6.0},
    ),
    "a share that rounds to nothing": (
        OptimizerSpec(learning_rate=6.0, warmup_ratio=0.09),
        {0: 6.0},
    ),
    "a cosine that rises again, and stays at the top": (
        OptimizerSpec(
            learning_rate=2.0, schedule="cosine", cycles=1.0, min_learning_rate_ratio=0.5
        ),
        {**{0: 2.0, 5: 1.0, 10: 2.0, 12: 2.0}, 1: 1.5 + 0.5 * math.cos(math.pi / 5)},
    ),
    "a cosine of three halves behind a warm-up": (
        OptimizerSpec(learning_rate=1.0, schedule="cosine", cycles=1.5, warmup_ratio=0.1),
        {0: 0.0, 1: 1.0, 4: 0.0, 7: 1.0, 10: 0.0},
    ),
    "a line that falls to its minimum and stays": (
        OptimizerSpec(
            learning_rate=4.0, warmup_steps=2, schedule="linear", min_learning_rate_ratio=0.5
        ),
        {0: 0.0, 1: 2.0, 2: 4.0, 4: 3.5, 6: 3.0, 10: 2.0, 12: 2.0},
    ),
    "a warm-up from half of the rate, and a line that ends before the run": (
        OptimizerSpec(
            learning_rate=4.0,
            warmup_steps=2,
            warmup_start_ratio=0.5,
            schedule="linear",
            decay_steps=6,
        ),
        {0: 2.0, 1: 3.0, 2: 4.0, 4: 2.0, 6: 0.0, 9: 0.0},
    ),
    "warm-up, stable, decay, which end after eight tenths": (
        OptimizerSpec(
            learning_rate=1.0,
            warmup_ratio=0.2,
            schedule="cosine",
            stable_ratio=0.5,
            decay_ratio=0.8,
        ),
        {0: 0.0, 1: 0.5, 2: 1.0, 5: 1.0, 6: 0.75, 7: 0.25, 8: 0.0, 9: 0.0},
    ),
    "an inverse root, down to its minimum": (
        OptimizerSpec(
            learning_rate=6.0,
            warmup_steps=1,
            schedule="inverse_sqrt",
            min_learning_rate_ratio=0.25,
        ),
        {0: 0.0, 1: 6.0, 4: 3.0, 9: 2.0, 16: 1.5, 900: 1.5},
    ),
    "an inverse root without a warm-up": (
        OptimizerSpec(learning_rate=6.0, schedule="inverse_sqrt"),
        {0: 6.0, 1: 6.0, 4: 3.0},
    ),
    "a warm-up that is longer than the job": (
        OptimizerSpec(learning_rate=1.0, warmup_steps=100, schedule="cosine"),
        {9: 0.09},
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_of_a_job_of_ten_steps(name):
    spec, rates = RATES[name]
    assert {step: learning_rate(spec, step, 10) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize(
    ("warmup", "name", "settings", "theirs"),
    [
        (0, "linear", {}, {}),
        (3, "linear", {}, {}),
        (3, "polynomial", {"power": 1.5}, {"power": 1.5, "lr_end": 0.0}),
        (2, "polynomial", {"min_learning_rate_ratio": 0.1}, {"power": 2.0, "lr_end": 0.5}),
        (3, "inverse_sqrt", {}, {}),
    ],
)
def test_rates_of_transformers(warmup: int, name: str, settings: dict, theirs: dict) -> None:
    spec = OptimizerSpec(learning_rate=5.0, warmup_steps=warmup, schedule=name, **settings)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5.0)
    schedule = get_scheduler(name, optimizer, warmup, 10, scheduler_specific_kwargs=theirs)
    for step in range(12):
        assert learning_rate(spec, step, 10) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("case", VERL["cosine_schedules"], ids=lambda case: f"{case['cycles']}")
def test_rates_of_verls_cosine(case):
    settings = {key: case[key] for key in ("warmup_steps", "min_learning_rate_ratio", "cycles")}
    spec = OptimizerSpec(learning_rate=1.0, schedule="cosine", **settings)
    ours = [learning_rate(spec, step, case["total"]) for step in range(len(case["rates"]))]
    assert ours == pytest.approx(case["rates"], abs=1e-8)


@pytest.mark.parametrize(("limit", "factor"), [(0.0, 1.0), (10.0, 1.0), (2.5, 0.5)])
def test_the_global_norm_is_clipped(limit, factor):
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients(parameters, limit, World.alone()) == 5.0
    assert parameters[0].grad[0] == pytest.approx(3.0 * factor, rel=1e-5)
    assert parameters[1].grad[0] == pytest.approx(4.0 * factor, rel=1e-5)


def literally_orthogonal(matrix: Tensor) -> Tensor:
    """The quintic of Muon on each singular value, five times."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize("shape", [(6, 6), (4, 10), (10, 4), (1, 5)])
def test_a_matrix_is_made_orthogonal_by_its_singular_values(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = literally_orthogonal(matrix)
    torch.testing.assert_close(orthogonal(matrix).double(), expected, rtol=1e-4, atol=1e-5)
    values = torch.linalg.svdvals(expected)
    assert values.min() > 0.5
    assert values.max() < 1.3
    assert not orthogonal(torch.zeros(shape)).any()


def steps_of(spec: OptimizerSpec, model: nn.Module, gradients: list[dict[str, Tensor]]) -> None:
    optimizer = build_optimizer(model, spec)
    for of_step in gradients:
        for name, weight in model.named_parameters():
            weight.grad = of_step[name].clone()
        optimizer.step()


def gradients_of(model: nn.Module) -> list[dict[str, Tensor]]:
    torch.manual_seed(5)
    return [{n: torch.randn_like(p) for n, p in model.named_parameters()} for _ in range(3)]


RATE, DECAY = 0.1, 0.2
SHARED = {"learning_rate": RATE, "weight_decay": DECAY}


def test_muon_turns_matrices_of_layers_and_adamw_all_else():
    model, plain = (make_model(tie_word_embeddings=True) for _ in range(2))
    before = {name: weight.detach().double() for name, weight in model.named_parameters()}
    gradients = gradients_of(model)
    steps_of(OptimizerSpec(type="muon", momentum=0.8, **SHARED), model, gradients)
    steps_of(OptimizerSpec(**SHARED), plain, gradients)
    others = dict(plain.named_parameters())
    matrices = 0
    for name, weight in model.named_parameters():
        if weight.ndim == 1 or "layers" not in name:
            assert torch.equal(weight, others[name])
            continue
        matrices += 1
        expected, buffer = before[name], torch.zeros_like(before[name])
        for of_step in gradients:
            gradient = of_step[name].double()
            buffer = 0.8 * buffer + 0.2 * gradient
            turned = literally_orthogonal(0.2 * gradient + 0.8 * buffer)
            expected = expected * (1 - RATE * DECAY)
            expected = expected - RATE * 0.2 * math.sqrt(max(weight.shape)) * turned
        torch.testing.assert_close(weight.double(), expected, rtol=1e-4, atol=1e-4)
    assert matrices == 7


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_adds_weight_decay_to_the_gradient(momentum):
    model = make_model()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    gradients = gradients_of(model)
    steps_of(OptimizerSpec(type="sgd", momentum=momentum, **SHARED), model, gradients)
    for name, weight in model.named_parameters():
        expected, speed = before[name], torch.zeros_like(before[name])
        for of_step in gradients:
            speed = momentum * speed + of_step[name] + DECAY * expected
            expected = expected - RATE * speed
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6)
