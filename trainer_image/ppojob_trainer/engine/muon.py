"""Muon optimizer: momentum orthogonalized by Newton-Schulz before it updates the weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle, islice, repeat
from typing import Any, Final

import torch
from torch import Tensor, nn

from ppojob_api.v1alpha1.training import MuonSpec
from ppojob_trainer.parallel.boxes import box_of, full_tensor, local_part, shard_like

BUFFER: Final = "momentum_buffer"

_LEAST_NORM: Final = 1e-7
_OF_ADAMW: Final = 0.2
"""Factor of the spectral scale that makes updates as large as AdamW's (arXiv:2502.16982)."""
_COEFFICIENTS: Final[Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "simple": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ),
    "cans": (
        (8.4703, -25.1081, 18.6293),
        (4.1828, -3.1087, 0.5806),
        (3.9619, -2.9541, 0.5630),
        (3.2866, -2.4647, 0.5074),
        (2.2737, -1.6447, 0.4162),
    ),
    "aol": (
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ),
    "deepseekv4": (*((3.4445, -4.7750, 2.0315),) * 8, (2.0, -1.5, 0.5)),
}
"""Coefficients of Newton-Schulz steps, by the names of Megatron's emerging_optimizers.

Sources: Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), modded-nanogpt, Polar
Express (arXiv:2505.16932, divided by its safety factor 1.01), CANS (arXiv:2506.10935),
flash-newton-schulz, DeepSeek-V4.
"""
_LAST_REPEATS: Final = ("polar_express", "cans", "deepseekv4")
"""Sets whose last coefficients also serve further steps; others begin again."""


def orthogonal(matrix: Tensor, spec: MuonSpec) -> Tensor:
    """Return approximately U Vᵀ of a matrix U S Vᵀ (rows, columns).

    Newton-Schulz iterations of a quintic bring singular values near 1. In float32, where others use
    bfloat16, so that parallel layouts agree.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix).float()
    x = x / x.norm().clamp(min=_LEAST_NORM)
    known = _COEFFICIENTS[spec.coefficients]
    further = repeat(known[-1]) if spec.coefficients in _LAST_REPEATS else cycle(known)
    for a, b, c in islice(chain(known, further), spec.ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = x.T if is_tall else x
    return found


def update_scale(spec: MuonSpec, out: int, into: int) -> float:
    """Return the factor of the orthogonal update of a weight (out, in)."""
    factor = spec.extra_scale_factor
    if spec.scale_mode == "spectral":
        return (_OF_ADAMW if factor is None else factor) * math.sqrt(max(out, into))
    ratio = out / into if spec.scale_mode == "unit_rms_norm" else max(1.0, out / into)
    return (1.0 if factor is None else factor) * math.sqrt(ratio)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of a model's layers, and AdamW for all other parameters.

    By default, as in Liu et al. 2025 (arXiv:2502.16982), with Nesterov momentum and updates scaled
    by 0.2 √n, n the longer side, so that both share one learning rate and weight decay. Sharded
    momentum is all-gathered matrix by matrix: a step is a collective of the ranks that hold the
    model.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        scales: Mapping[nn.Parameter, float],
        others: torch.optim.Adam | None,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        spec: MuonSpec,
    ) -> None:
        """Take groups of matrices, with the `update_scale` of each; `others` may be None."""
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(groups, defaults)
        self._scales, self._spec, self._own = scales, spec, len(groups)
        self._others = others
        if others is not None:
            self.param_groups += others.param_groups
            self.state = others.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "the gradients have been computed"
        if self._others is not None:
            self._others.step()
        for group in self.param_groups[: self._own]:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, parameter: nn.Parameter, rate: float, decay: float, momentum: float) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None, "only parameters with gradients"
        mine = local_part(gradient)
        if BUFFER not in state:
            state[BUFFER] = shard_like(parameter, torch.zeros_like(mine))
        buffer = local_part(state[BUFFER])
        buffer.lerp_(mine, 1.0 - momentum)
        seen = mine.lerp(buffer, momentum) if self._spec.nesterov else buffer
        update = orthogonal(full_tensor(shard_like(parameter, seen)), self._spec)
        weights, scale = local_part(parameter), self._scales[parameter]
        weights.mul_(1.0 - rate * decay)
        weights.add_(box_of(parameter).of(update).to(weights.dtype), alpha=-rate * scale)
