"""Linear maps, such as collectives, whose backward pass applies the adjoint."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]


def linear_map(values: Tensor, forward: Map, adjoint: Map) -> Tensor:
    """Return `forward(values)`, through which `adjoint` maps the gradient back."""
    result: Tensor = _LinearMap.apply(values, forward, adjoint)  # type: ignore[no-untyped-call]
    return result


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, forward: Map, adjoint: Map) -> Tensor:
        ctx.adjoint = adjoint
        return forward(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.adjoint(grads[0]), None, None
