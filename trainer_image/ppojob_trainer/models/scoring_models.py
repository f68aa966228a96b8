"""Models that give one number: the language model of any family, with another head."""

from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ppojob_trainer.models.kinds import CLASSIFIERS, TOKENS


class _ScoringModel:
    """A decoder with a number of each token, in place of what its causal model has behind it.

    Where transformers has such a class too, that has the same weights by the same names, but for
    the head of critics of GPT-2 and GPT-NeoX.
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
        """It draws nothing, whatever the folder's generation_config.json says."""
        return False


def class_of(config: PreTrainedConfig, made_as: str) -> Any:
    """The class of a kind of model; of a language model transformers' own, or what it was told."""
    causal = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if made_as not in CLASSIFIERS:
        return causal
    name = causal.__name__.partition("For")[0].removesuffix("LMHeadModel")
    # By its module transformers knows whose files it reads.
    parts = {"has_bias": made_as == TOKENS, "__module__": causal.__module__}
    return type(f"{name}{made_as}", (_ScoringModel, causal), parts)
