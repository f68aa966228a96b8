import json
import math
from pathlib import Path

import pytest
import torch
from tiny_models import make_model
from torch import Tensor, nn
from transformers import get_scheduler

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.training import MuonSpec, OptimizerSpec
from ppojob_trainer.engine.muon import orthogonal
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    set_rate,
    trained_parameters,
)
from ppojob_trainer.models.lora import add_adapters
from ppojob_trainer.models.transformers_modules import TransposedLinear
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
            learning_rate=6.0, warmup_steps=1, schedule="inverse_sqrt", min_learning_rate_ratio=0.25
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


SIMPLE = [(3.4445, -4.7750, 2.0315)]
COEFFICIENTS = {
    "simple": SIMPLE * 7,
    "quintic": [
        *((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037)),
        *((2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)),
        *((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377)),
    ],
    # The paper's (arXiv:2505.16932, algorithm 1), of which x is divided by 1.01.
    "polar_express": [
        (a / 1.01, b / 1.01**3, c / 1.01**5)
        for a, b, c in (
            (8.28721201814563, -23.595886519098837, 17.300387312530933),
            (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
            (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
            (3.3184196573706015, -2.488488024314874, 0.51004894012372),
            (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
            (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
            (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        )
    ],
    "deepseekv4": SIMPLE * 8 + [(2.0, -1.5, 0.5)] * 4,
}


def literally_orthogonal(matrix: Tensor, coefficients=SIMPLE * 5) -> Tensor:
    """The quintics of Muon on each singular value."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for a, b, c in coefficients:
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize("shape", [(6, 6), (4, 10), (10, 4), (1, 5)])
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_a_matrix_is_made_orthogonal_by_its_singular_values(shape, name):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for steps in (5, len(COEFFICIENTS[name])):  # of all there are, and of more
        spec = MuonSpec(coefficients=name, ns_steps=steps)
        found = orthogonal(matrix, spec).double()
        expected = literally_orthogonal(matrix, COEFFICIENTS[name][:steps])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert not orthogonal(torch.zeros(shape), spec).any()
    values = torch.linalg.svdvals(orthogonal(matrix, MuonSpec(coefficients=name)))
    assert values.min() > 0.5
    assert values.max() < 1.3


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


SHAPE_SCALING = MuonSpec(scale_mode="shape_scaling")
MUONS = [
    (None, lambda out, into: 0.2 * math.sqrt(max(out, into))),
    (MuonSpec(extra_scale_factor=0.5), lambda out, into: 0.5 * math.sqrt(max(out, into))),
    (SHAPE_SCALING, lambda out, into: math.sqrt(max(1, out / into))),
    (
        MuonSpec(nesterov=False, scale_mode="unit_rms_norm", extra_scale_factor=2.0),
        lambda out, into: 2.0 * math.sqrt(out / into),
    ),
]


@pytest.mark.parametrize(("muon", "scale"), MUONS)
def test_muon_turns_matrices_of_layers_and_adamw_all_else(muon, scale):
    model, plain = (make_model(tie_word_embeddings=True) for _ in range(2))
    before = {name: weight.detach().double() for name, weight in model.named_parameters()}
    gradients = gradients_of(model)
    spec = OptimizerSpec(type="muon", momentum=0.8, muon=muon, **SHARED)
    steps_of(spec, model, gradients)
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
            is_plain = muon is not None and not muon.nesterov
            turned = literally_orthogonal(buffer if is_plain else 0.2 * gradient + 0.8 * buffer)
            expected = expected * (1 - RATE * DECAY)
            expected = expected - RATE * scale(*weight.shape) * turned
        torch.testing.assert_close(weight.double(), expected, rtol=1e-4, atol=2e-4)
    assert matrices == 7


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_b_learns_at_a_rate_of_its_own(kind):
    """LoRA+: as adapters of a model that has this rate for all, and A as of another."""
    spec = OptimizerSpec(type=kind, **SHARED)
    after = {}
    for name, one in {
        "plain": spec,
        "faster": spec.model_copy(update={"learning_rate": 16 * RATE}),
        "plus": spec.model_copy(update={"lora_plus_ratio": 16.0}),
    }.items():
        model = make_model()
        add_adapters(model, LoraSpec(rank=2))
        optimizer = build_optimizer(model, one)
        set_rate(optimizer, one.learning_rate)
        named = trained_parameters(model)
        generator = torch.Generator().manual_seed(4)
        for weight in named.values():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
        after[name] = {one: weight.detach() for one, weight in named.items()}
    for name, weight in after["plus"].items():
        other = "faster" if name.endswith("lora_b") else "plain"
        torch.testing.assert_close(weight, after[other][name], rtol=1e-6, atol=0.0)
        assert not torch.equal(after["plain"][name], after["faster"][name])


def test_muon_is_pytorch_s_but_for_bfloat16():
    """Its default, adjust_lr_fn: original, with a weight that is stored (in, out) as well."""
    layer, turned = nn.Linear(6, 10, bias=False), nn.Linear(6, 10, bias=False)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"a": layer, "b": turned})])})
    turned.__class__ = TransposedLinear
    turned.weight = nn.Parameter(layer.weight.detach().T.clone())
    theirs = nn.Parameter(layer.weight.detach().clone())
    optimizer = torch.optim.Muon([theirs], lr=RATE, weight_decay=DECAY)
    build = build_optimizer(model, OptimizerSpec(type="muon", muon=SHAPE_SCALING, **SHARED))
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        theirs.grad = torch.randn(10, 6, generator=generator)
        layer.weight.grad, turned.weight.grad = theirs.grad.clone(), theirs.grad.T.clone()
        optimizer.step()
        build.step()
    torch.testing.assert_close(layer.weight, theirs, rtol=0.02, atol=0.02)
    torch.testing.assert_close(turned.weight.T, layer.weight, rtol=1e-4, atol=1e-5)


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


def test_weight_decay_that_is_not_decoupled_is_part_of_the_gradient():
    """Algorithm 1 of Adam, of the gradient of a loss with L2 regularization."""
    model = make_model()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    gradients = gradients_of(model)
    steps_of(OptimizerSpec(decoupled_weight_decay=False, **SHARED), model, gradients)
    for name, weight in model.named_parameters():
        expected = before[name].double()
        first, second = (torch.zeros_like(expected) for _ in range(2))
        for step, of_step in enumerate(gradients, start=1):
            gradient = of_step[name].double() + DECAY * expected
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            lengths = (second / (1.0 - 0.999**step)).sqrt() + 1e-8
            expected = expected - RATE * first / (1.0 - 0.9**step) / lengths
        torch.testing.assert_close(weight.double(), expected, rtol=1e-5, atol=1e-6)


def test_amsgrad_divides_by_the_largest_second_moment_so_far():
    """Algorithm 2 of the paper, with AdamW's weight decay and PyTorch's corrections of biases."""
    model = make_model()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    gradients = gradients_of(model)
    gradients = [{n: g / 10**step for n, g in one.items()} for step, one in enumerate(gradients)]
    steps_of(OptimizerSpec(amsgrad=True, **SHARED), model, gradients)
    for name, weight in model.named_parameters():
        expected = before[name].double()
        first, second, largest = (torch.zeros_like(expected) for _ in range(3))
        for step, of_step in enumerate(gradients, start=1):
            gradient = of_step[name].double()
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            largest = torch.maximum(largest, second)
            lengths = (largest / (1.0 - 0.999**step)).sqrt() + 1e-8
            change = first / (1.0 - 0.9**step) / lengths
            expected = expected * (1.0 - RATE * DECAY) - RATE * change
        torch.testing.assert_close(weight.double(), expected, rtol=1e-5, atol=1e-6)
