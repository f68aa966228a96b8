"""Optimizers, learning-rate schedules, and optimizer state as named tensors."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from ppojob_api.v1alpha1.training import MuonSpec, OptimizerSpec
from ppojob_trainer.engine.muon import BUFFER, Muon, update_scale
from ppojob_trainer.engine.stochastic_rounding import round_into
from ppojob_trainer.models.adapter_names import B
from ppojob_trainer.models.transformers_modules import TransposedLinear
from ppojob_trainer.parallel.boxes import (
    Box,
    box_of,
    copy_pieces,
    is_first_holder,
    local_part,
    shard_like,
)
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.fsdp import decoder_layers
from ppojob_trainer.parallel.offload import HostBuffers
from ppojob_trainer.parallel.world import World

COUNT = "step"
"""The only state without the shape of its parameter."""
OF_ADAMW = ("exp_avg", "exp_avg_sq", COUNT)
_LARGEST: Final = "max_exp_avg_sq"
"""AMSGrad's moment."""
RATE_RATIO: Final = "rate_ratio"
"""Key of a parameter group: its learning rate over the optimizer's."""


def learning_rate(spec: OptimizerSpec, step: int, total_steps: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    Linear warm-up from 0, or from its start rate. Then constant, or a decay from `lr` to `lr * r`,
    r the ratio of the minimum: `lr * (r + (1 - r) f)`. With x the share done of the steps after
    warm-up and stable phase, f is `1 - x` (linear, as in transformers and Megatron), `(1 -
    x)^power` (polynomial), or `(1 + cos(2 pi cycles x)) / 2` (cosine, half a cycle by default, as
    in verl). After the end the rate is constant. The inverse square root has no end: `lr * max(r,
    sqrt(warmup / step))`, with both at least 1, as in Megatron.
    """
    warmup = spec.warmup_steps or int(spec.warmup_ratio * total_steps)
    if step < warmup:
        start = spec.learning_rate * spec.warmup_start_ratio
        return start + (spec.learning_rate - start) * step / warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    floor = spec.min_learning_rate_ratio
    if spec.schedule == "inverse_sqrt":
        return spec.learning_rate * max(floor, math.sqrt(max(1, warmup) / max(1, step)))
    end = spec.decay_steps or int(spec.decay_ratio * total_steps)
    done = min(1.0, (step - warmup) / max(1, end - warmup))
    done = max(0.0, done - spec.stable_ratio) / (1.0 - spec.stable_ratio)
    if spec.schedule == "cosine":
        share = 0.5 * (1.0 + math.cos(2.0 * math.pi * spec.cycles * done))
    else:
        share = (1.0 - done) ** (spec.power if spec.schedule == "polynomial" else 1.0)
    return spec.learning_rate * (floor + (1.0 - floor) * share)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def matrices_of(model: nn.Module) -> set[nn.Parameter]:
    """Return the trained matrices of the layers, without biases and stacked experts."""
    return {
        one
        for layer in decoder_layers(model)
        for name, one in layer.named_parameters()
        if one.ndim == 2 and one.requires_grad and not name.endswith("_bias")
    }


def build_optimizer(model: nn.Module, spec: OptimizerSpec) -> torch.optim.Optimizer:
    """Build an optimizer of all trained parameters, with weight decay on each as in verl.

    The fused form makes one pass over weights, gradients and moments; SGD has none for sharded
    weights.
    """
    named = trained_parameters(model)
    shared: dict[str, Any] = {"lr": spec.learning_rate, "weight_decay": spec.weight_decay}
    if spec.type == "sgd":
        return _Sgd(_groups(named, spec), momentum=spec.momentum, foreach=True, **shared)
    matrices = matrices_of(model) if spec.type == "muon" else set()
    others = {name: one for name, one in named.items() if one not in matrices}
    adamw = None
    if others:
        groups = _groups(others, spec)
        own: dict[str, Any] = {"betas": spec.betas, "eps": spec.epsilon, "amsgrad": spec.amsgrad}
        own["decoupled_weight_decay"] = spec.decoupled_weight_decay
        adamw = _Adam(groups, fused=True, **own, **shared)
    if spec.type == "adamw":
        assert adamw is not None, "something is trained"
        return adamw
    of_muon = {name: one for name, one in named.items() if one in matrices}
    muon = spec.muon or MuonSpec()
    layers = (layer for layer in model.modules() if isinstance(layer, TransposedLinear))
    into_first = {layer.weight for layer in layers}
    scales = {
        one: update_scale(muon, *(reversed(one.shape) if one in into_first else one.shape))
        for one in of_muon.values()
    }
    momentum = spec.momentum
    return Muon(_groups(of_muon, spec), scales, adamw, momentum=momentum, spec=muon, **shared)


def _groups(named: Mapping[str, nn.Parameter], spec: OptimizerSpec) -> list[dict[str, Any]]:
    """Return the parameter groups: with LoRA+ those of B separately."""
    parts: dict[float, list[nn.Parameter]] = {1.0: [], spec.lora_plus_ratio: []}
    for name, one in named.items():
        is_b = name.endswith((f".{B}", f"_{B}"))
        parts[spec.lora_plus_ratio if is_b else 1.0].append(one)
    return [{"params": part, RATE_RATIO: ratio} for ratio, part in parts.items()]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of each group by its ratio."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[RATE_RATIO]


class _ByParts(torch.optim.Optimizer):
    """Steps on the local shards of weights, gradients and moments; elementwise optimizers only.

    PyTorch's planning for lists of DTensors takes tenths of a second for each new list.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        state, groups = self.state, [(group, group["params"]) for group in self.param_groups]
        parts = {
            weight: local_part(weight).detach()
            for _, weights in groups
            for weight in weights
            if weight.grad is not None
        }
        self.state = defaultdict(dict)
        try:
            for weight, part in parts.items():
                part.grad = local_part(weight.grad)
                if weight in state:
                    self.state[part] = {key: local_part(one) for key, one in state[weight].items()}
            for group, weights in groups:
                group["params"] = [parts[weight] for weight in weights if weight in parts]
            super().step()
            for weight, part in parts.items():
                if part in self.state and weight not in state:
                    state[weight] = {
                        key: one if key == COUNT else shard_like(weight, one)
                        for key, one in self.state[part].items()
                    }
        finally:
            self.state = state
            for group, weights in groups:
                group["params"] = weights


class _Adam(_ByParts, torch.optim.Adam):
    """AdamW, unless weight decay is not decoupled."""


class _Sgd(_ByParts, torch.optim.SGD):
    """SGD."""


def clip_gradients(
    parameters: Iterable[Tensor], limit: float, world: World, *, elsewhere: Tensor | None = None
) -> float:
    """Scale gradients so that their global norm is at most `limit`; 0 for no limit.

    Replicated shards count once; the gradient `elsewhere` is counted at another pipeline stage.
    Returns the global norm before clipping, the same on all ranks; gradients are unusable if it is
    not finite.
    """
    cut = [(p, p.grad) for p in parameters if p.grad is not None]
    grads = [local_part(grad) for _, grad in cut]
    norm = nn.utils.get_total_norm(
        [local_part(grad) for p, grad in cut if is_first_holder(grad) and p is not elsewhere]
    )
    if world.size > 1:
        (squares,) = sum_over_ranks(world, [float(norm) ** 2])
        norm = norm.new_tensor(math.sqrt(squares))
    if limit and norm.isfinite() and norm > limit:
        torch._foreach_mul_(grads, limit / (norm + 1e-6))
    return float(norm)


def step_by_weight(
    optimizer: torch.optim.Optimizer,
    host: HostBuffers | None = None,
    names: Mapping[Tensor, str] | None = None,
    update: int = 0,
) -> None:
    """Step with the moments of one weight at a time on the device.

    With `host`, moments are offloaded between steps. With `names` of the weights, moments of
    float32 weights are stored in bfloat16, stochastically rounded by a hash of name and `update`.
    """
    for weight in _one_by_one(optimizer):
        if host is not None:
            host.load(_moments(optimizer, weight).values())
        with _in_float32(optimizer, weight, f"{names[weight]}/{update}" if names else None):
            optimizer.step()
        if host is not None:
            host.offload(_moments(optimizer, weight).values())


def _one_by_one(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield each weight as the optimizer's only one."""
    groups = [(group, group["params"]) for group in optimizer.param_groups]
    try:
        for group, _ in groups:
            group["params"] = []
        for group, weights in groups:
            for weight in weights:
                group["params"] = [weight]
                yield weight
            group["params"] = []
    finally:
        for group, weights in groups:
            group["params"] = weights


@contextmanager
def _in_float32(
    optimizer: torch.optim.Optimizer, weight: Tensor, what: str | None
) -> Iterator[None]:
    """Have a named weight's moments in float32 within the block, and in bfloat16 after it."""
    if what is None or weight.dtype != torch.float32:
        yield
        return
    stored = _moments(optimizer, weight)
    for key, moment in stored.items():
        optimizer.state[weight][key] = shard_like(weight, local_part(moment).float())
    yield
    for key, moment in _moments(optimizer, weight).items():
        values = local_part(moment)
        low = stored.get(key)
        if low is None:
            low = shard_like(weight, torch.empty_like(values, dtype=torch.bfloat16))
        round_into(local_part(low), values, box_of(weight), f"{what}/{key}")
        optimizer.state[weight][key] = low


def _moments(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return the moments of a weight by their keys; empty before the first step."""
    return {key: one for key, one in optimizer.state.get(weight, {}).items() if key != COUNT}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state, `<parameter>/<key>` -> tensor; empty before the first step.

    Moments are sharded as their parameters are.
    """
    names: dict[Tensor, str] = {weight: name for name, weight in model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": copy_pieces(parameter, state[key])
        for parameter, state in optimizer.state.items()
        for key in (*OF_ADAMW, _LARGEST, BUFFER)
        if key in state
    }


def _state_keys(model: nn.Module, spec: OptimizerSpec) -> dict[str, tuple[str, ...]]:
    parameters = trained_parameters(model)
    if spec.type == "sgd":
        return dict.fromkeys(parameters, (BUFFER,) if spec.momentum else ())
    matrices = matrices_of(model) if spec.type == "muon" else set()
    of_adamw = (*OF_ADAMW, _LARGEST) if spec.amsgrad else OF_ADAMW
    return {name: (BUFFER,) if one in matrices else of_adamw for name, one in parameters.items()}


def optimizer_boxes(model: nn.Module, spec: OptimizerSpec) -> dict[str, Box]:
    """Return this rank's shard of each tensor of the optimizer."""
    parameters = trained_parameters(model)
    return {
        f"{name}/{key}": Box.whole(()) if key == COUNT else box_of(parameters[name])
        for name, keys in _state_keys(model, spec).items()
        for key in keys
    }


def load_optimizer_tensors(
    model: nn.Module,
    spec: OptimizerSpec,
    optimizer: torch.optim.Optimizer,
    parts: Mapping[str, Tensor],
    host: HostBuffers | None = None,
) -> None:
    """Load copies of this rank's shards of `optimizer_tensors`; `host` offloads moments at once."""
    optimizer.state.clear()
    parameters = trained_parameters(model)
    for name, keys in _state_keys(model, spec).items() if parts else ():
        parameter = parameters[name]
        state = {
            key: parts[f"{name}/{key}"].to(parameter.device, copy=True)
            for key in keys
            # A branch of a run may begin with the momentum of SGD.
            if key != BUFFER or f"{name}/{key}" in parts
        }
        optimizer.state[parameter] = {
            key: value if key == COUNT else shard_like(parameter, value)
            for key, value in state.items()
        }
        if host is not None:
            host.offload(_moments(optimizer, parameter).values())
