import json
import math
from pathlib import Path

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from ppojob_api.v1alpha1.training import OptimizerSpec
from ppojob_trainer.engine.optimizer import clip_gradients, learning_rate
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
    "a warm-up that is longer than the job": (
        OptimizerSpec(learning_rate=1.0, warmup_steps=100, schedule="cosine"),
        {9: 0.09},
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_of_a_job_of_ten_steps(name):
    spec, rates = RATES[name]
    assert {step: learning_rate(spec, step, 10) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize("warmup", [0, 3])
def test_rates_of_transformers_linear(warmup: int) -> None:
    spec = OptimizerSpec(learning_rate=5.0, warmup_steps=warmup, schedule="linear")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5.0)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, num_training_steps=10)
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
