"""Models that vLLM makes of transformers' classes, beside a trainer of the same classes.

vLLM gives the class of a decoder another `__init__`, `__call__` and base, by which it may compile
it, and the trainer's models of that class would have them too. So vLLM's are of a class of their
own. What else it changes is of one model: its modules and the forward passes of these.

Imported by vllm_arguments alone.
"""

from functools import cache
from typing import Any

from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel


class OwnClasses:
    """What vLLM has for transformers' `AutoModel`."""

    @staticmethod
    def from_config(config: PreTrainedConfig, dtype: Any, **_: Any) -> PreTrainedModel:
        """A model without weights, of the same class each time."""
        model: PreTrainedModel = _own(MODEL_MAPPING[type(config)])._from_config(config, dtype=dtype)
        return model


@cache
def _own(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """A class with the name of another, by which transformers finds what it knows of that."""
    return type(kind.__name__, (kind,), {"__module__": kind.__module__})
