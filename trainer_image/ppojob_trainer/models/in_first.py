"""Linear layers whose weight has its inputs in front of its outputs, as files of GPT-2 have it."""

from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class InFirstLinear(nn.Linear):
    """A linear layer with a weight (in, out), which so goes into files and to engines."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """(..., in) -> (..., out)."""
        return functional.linear(input, self.weight.mT, self.bias)


def make_linear(model: nn.Module) -> None:
    """Let the layers of a model that transformers computes in its own way be linear ones."""
    for layer in model.modules():
        if isinstance(layer, Conv1D):
            into, out = layer.nx, layer.nf
            layer.__class__ = InFirstLinear
            layer.in_features, layer.out_features = into, out
