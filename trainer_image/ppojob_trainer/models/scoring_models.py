"""Value models: the language model of any family with a one-output head per token."""

from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ppojob_trainer.models.kinds import CLASSIFIERS, TOKENS


class _ScoringModel:
    """A decoder with a token classifier's head.

    Where transformers has such a class, the weights have the same names, except for the heads of
    critics of GPT-2 and GPT-NeoX.
    """

    has_bias: ClassVar[bool]
    _tied_weights_keys: ClassVar = None

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        own: Any = self
        for name in own._modules.keys() - {own.base_model_prefix}:
            delattr(self, name)
        config.num_labels = 1
        self.score = nn.Linear(config.hidden_size, 1, bias=self.has_bias)

    @classmethod
    def can_generate(cls) -> bool:
        """False: it does not generate, whatever the folder's generation_config.json says."""
        return False


def class_of(config: PreTrainedConfig, made_as: str) -> Any:
    """Return the class of a kind of model; for a causal LM transformers' or our own."""
    causal = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if made_as not in CLASSIFIERS:
        return causal
    name = causal.__name__.partition("For")[0].removesuffix("LMHeadModel")
    # transformers finds the family of files by the module's name.
    parts = {"has_bias": made_as == TOKENS, "__module__": causal.__module__}
    return type(f"{name}{made_as}", (_ScoringModel, causal), parts)
