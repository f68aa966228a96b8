import math

import pytest
import torch

from ppojob_api.v1alpha1.training import OptimizerSpec
from ppojob_trainer.engine.optimizer import build_optimizer, clip_gradients, learning_rate
from ppojob_trainer.parallel.world import World


def test_constant_after_linear_warm_up_from_zero():
    spec = OptimizerSpec(learning_rate=8.0, warmup_steps=4)
    assert [learning_rate(spec, step, 10) for step in range(7)] == [0, 2, 4, 6, 8, 8, 8]


def test_without_warm_up_the_first_step_has_the_peak():
    assert learning_rate(OptimizerSpec(learning_rate=8.0), 0, 10) == 8.0


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (0, 0.0),
        (1, 0.5),
        (2, 1.0),
        (4, 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2),
        (6, 0.55),
        (10, 0.1),
        (25, 0.1),
    ],
)
def test_cosine_falls_to_its_minimum_and_stays(step, share):
    spec = OptimizerSpec(
        learning_rate=3.0, warmup_steps=2, schedule="cosine", min_learning_rate_ratio=0.1
    )
    assert learning_rate(spec, step, 10) == pytest.approx(3.0 * share, abs=1e-12)


def test_a_warm_up_longer_than_the_job_only_warms_up():
    spec = OptimizerSpec(learning_rate=1.0, warmup_steps=100, schedule="cosine")
    assert learning_rate(spec, 9, 10) == pytest.approx(0.09)


@pytest.mark.parametrize(("limit", "factor"), [(0.0, 1.0), (10.0, 1.0), (2.5, 0.5)])
def test_the_global_norm_is_clipped(limit, factor):
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients(parameters, limit, World.alone()) == 5.0
    assert parameters[0].grad[0] == pytest.approx(3.0 * factor, rel=1e-5)
    assert parameters[1].grad[0] == pytest.approx(4.0 * factor, rel=1e-5)


@pytest.mark.parametrize(("dtype", "moves"), [(torch.float32, True), (torch.bfloat16, False)])
def test_which_weights_bfloat16_leaves_as_they_are(dtype, moves):
    """What the warning of `spec.model.dtype` says: those of more than 512 learning rates."""
    rate = 1e-6
    model = torch.nn.Linear(2, 1, bias=False).to(dtype)
    model.weight.data = torch.tensor([[700 * rate, 100 * rate]], dtype=dtype)
    before = model.weight.detach().clone()
    optimizer = build_optimizer(model, OptimizerSpec(learning_rate=rate))
    for _ in range(20):
        model.weight.grad = torch.full_like(model.weight, 1e-3)
        optimizer.step()
    assert (model.weight != before).tolist() == [[moves, True]]
