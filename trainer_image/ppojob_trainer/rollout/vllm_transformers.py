"""Subclasses for vLLM's Transformers backend, so that the trainer's classes stay unchanged.

vLLM replaces `__init__`, `__call__` and a base of the decoder's class to compile it. In one process
the trainer's models of that class would change too, so vLLM gets a subclass. Its other changes are
to its own model instance only.

Imported by vllm_arguments alone.
"""

from functools import cache
from typing import Any

from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel


class OwnClasses:
    """Stands in for transformers' `AutoModel` in vLLM's Transformers backend."""

    @staticmethod
    def from_config(config: PreTrainedConfig, dtype: Any, **_: Any) -> PreTrainedModel:
        """Make a model without weights, of the same subclass each time."""
        model: PreTrainedModel = _own(MODEL_MAPPING[type(config)])._from_config(config, dtype=dtype)
        return model


@cache
def _own(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Make a subclass of the same name, by which transformers finds the settings of the model."""
    return type(kind.__name__, (kind,), {"__module__": kind.__module__})
