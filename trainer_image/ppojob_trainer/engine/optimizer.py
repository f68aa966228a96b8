"""AdamW, its learning rate as a function of the step, and its state as named tensors."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ppojob_api.v1alpha1.training import OptimizerSpec
from ppojob_trainer.parallel.boxes import Box, box_of, cut_like, is_first_holder, local_part
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.offload import HostMemory
from ppojob_trainer.parallel.world import World

MOMENTS = ("exp_avg", "exp_avg_sq")
STATE_KEYS = (*MOMENTS, "step")
"""What AdamW keeps for each parameter."""


def learning_rate(spec: OptimizerSpec, step: int, total_steps: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    Linear warm-up from 0, which the first step takes: `lr * step / warmup`. Then constant, or from
    `lr` towards `lr * r`, r the minimum's ratio: `lr * (r + (1 - r) f)`. With x the share of the
    steps after the warm-up that are done, f is `1 - x` of a linear schedule, as in transformers and
    Megatron, and `(1 + cos(2 pi cycles x)) / 2` of a cosine, of half a cycle by default, as in
    verl. Past the end the rate stays where it is; verl's cosine would go on.
    """
    warmup = spec.warmup_steps or int(spec.warmup_ratio * total_steps)
    if step < warmup:
        return spec.learning_rate * step / warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if spec.schedule == "linear":
        share = 1.0 - done
    else:
        share = 0.5 * (1.0 + math.cos(2.0 * math.pi * spec.cycles * done))
    floor = spec.min_learning_rate_ratio
    return spec.learning_rate * (floor + (1.0 - floor) * share)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that updates change, by name: all, or where a model has adapters those."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def build_optimizer(model: nn.Module, spec: OptimizerSpec) -> torch.optim.AdamW:
    """AdamW over every parameter that is trained, each with weight decay as in verl.

    The fused form makes one pass over weights, gradients and moments.
    """
    return torch.optim.AdamW(
        trained_parameters(model).values(),
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def clip_gradients(
    parameters: Iterable[Tensor], limit: float, world: World, *, elsewhere: Tensor | None = None
) -> float:
    """Scale gradients so that their global norm is at most `limit`.

    A part that several ranks hold counts once; `elsewhere` counts at another stage. A limit of 0
    leaves the gradients as they are.

    Returns:
        The global norm before, the same on all ranks. Where it is not finite the gradients are of
        no use.
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


def step_by_weight(optimizer: torch.optim.Optimizer, host: HostMemory) -> None:
    """Step as the optimizer does, with the moments of one weight at a time on the device."""
    grads = {w: w.grad for group in optimizer.param_groups for w in group["params"]}
    optimizer.zero_grad(set_to_none=True)
    for weight, grad in grads.items():
        weight.grad = grad
        host.give_back(_moments(optimizer, weight))
        optimizer.step()
        host.take(_moments(optimizer, weight))
        weight.grad = None
    for weight, grad in grads.items():
        weight.grad = grad


def _moments(optimizer: torch.optim.Optimizer, weight: Tensor) -> list[Tensor]:
    """Those of a weight; none before the first step."""
    state = optimizer.state.get(weight, {})
    return [state[key] for key in MOMENTS if key in state]


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state, `<parameter name>/<key>` -> tensor; empty before the first step.

    Moments are cut over the ranks as their parameter is.
    """
    names: dict[Tensor, str] = {weight: name for name, weight in model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": state[key]
        for parameter, state in optimizer.state.items()
        for key in STATE_KEYS
        if key in state
    }


def optimizer_boxes(model: nn.Module) -> dict[str, Box]:
    """What this rank holds of each tensor of the optimizer."""
    return {
        f"{name}/{key}": box_of(parameter) if key in MOMENTS else Box.whole(())
        for name, parameter in trained_parameters(model).items()
        for key in STATE_KEYS
    }


def load_optimizer_tensors(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Mapping[str, Tensor],
    host: HostMemory | None = None,
) -> None:
    """Take up a copy of this rank's parts of `optimizer_tensors`, of which there may be none.

    Where host memory is given, moments go there weight by weight.
    """
    optimizer.state.clear()
    for name, parameter in trained_parameters(model).items() if parts else ():
        state = {key: parts[f"{name}/{key}"].to(parameter.device, copy=True) for key in STATE_KEYS}
        optimizer.state[parameter] = {
            key: cut_like(parameter, value) if key in MOMENTS else value
            for key, value in state.items()
        }
        if host is not None:
            host.take(_moments(optimizer, parameter))
