"""One number a token, by a model's `score` layer: a critic's values, a reward model's scores."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from ppojob_trainer.engine.head import TokenOutputs


class ValueHead:
    """Outputs V(s_t) of a model with a `score` layer.

    s_t is the state in which a_t is chosen, so a value knows no token that its advantage judges: it
    comes from the same packed position as log pi(a_t|s_t). verl: `values[:, -n - 1 : -1]`.
    """

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """`(values,)`, (tokens,), in float32 also under autocast: bfloat16 keeps three digits."""
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        weight, bias = model.score.weight.to(wide), model.score.bias
        with torch.autocast(hidden.device.type, enabled=False):
            values = F.linear(hidden.to(wide), weight, None if bias is None else bias.to(wide))
        return (values.squeeze(-1),)
