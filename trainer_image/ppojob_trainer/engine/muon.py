"""Muon optimizer: momentum orthogonalized by Newton-Schulz before it updates the weights."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ppojob_trainer.parallel.boxes import box_of, local_part, shard_like, whole

BUFFER: Final = "momentum_buffer"

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ROUNDS: Final = 5
_LEAST_NORM: Final = 1e-7


def orthogonal(matrix: Tensor) -> Tensor:
    """Return approximately U Vᵀ of a matrix U S Vᵀ (rows, columns).

    Five Newton-Schulz iterations with the quintic of Jordan et al. 2024
    (https://kellerjordan.github.io/posts/muon), which leaves singular values between 0.7 and 1.2.
    In float32, where its author uses bfloat16, so rounding differences of gradients are not
    amplified and parallel layouts agree.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix).float()
    x = x / x.norm().clamp(min=_LEAST_NORM)
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = x.T if is_tall else x
    return found


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of a model's layers, and AdamW for all other parameters.

    Nesterov momentum. As in Liu et al. 2025 (arXiv:2502.16982) an update is scaled by 0.2 √n, n the
    longer side: elements change about as much as by AdamW, so both share one learning rate and
    weight decay. Sharded momentum is all-gathered one matrix at a time, and every rank
    orthogonalizes it: a step is a collective of the ranks that hold the model.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: torch.optim.AdamW | None,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        """Make it; `others` is None where all parameters are matrices, as with adapters."""
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": list(matrices)}], defaults)
        self._others = others
        if others is not None:
            self.param_groups += others.param_groups
            self.state = others.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do one step with the present gradients."""
        assert closure is None, "the gradients have been computed"
        if self._others is not None:
            self._others.step()
        group = self.param_groups[0]
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._turn(parameter, group["lr"], group["weight_decay"], group["momentum"])

    def _turn(self, parameter: nn.Parameter, rate: float, decay: float, momentum: float) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None, "others are left alone"
        mine = local_part(gradient)
        if BUFFER not in state:
            state[BUFFER] = shard_like(parameter, torch.zeros_like(mine))
        buffer = local_part(state[BUFFER])
        buffer.lerp_(mine, 1.0 - momentum)
        update = orthogonal(whole(shard_like(parameter, mine.lerp(buffer, momentum))))
        scale = 0.2 * math.sqrt(max(parameter.shape))
        weights = local_part(parameter)
        weights.mul_(1.0 - rate * decay)
        weights.add_(box_of(parameter).of(update).to(weights.dtype), alpha=-rate * scale)
