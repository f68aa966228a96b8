"""Linear layers whose weight is stored (in, out), as in GPT-2's files (transformers' Conv1D)."""

from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class TransposedLinear(nn.Linear):
    """A linear layer with a weight (in, out), saved and sent to engines in this form."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """(..., in) -> (..., out)."""
        return functional.linear(input, self.weight.mT, self.bias)


def make_linear(model: nn.Module) -> None:
    """Replace transformers' Conv1D layers of a model by linear ones."""
    for layer in model.modules():
        if isinstance(layer, Conv1D):
            into, out = layer.nx, layer.nf
            layer.__class__ = TransposedLinear
            layer.in_features, layer.out_features = into, out
