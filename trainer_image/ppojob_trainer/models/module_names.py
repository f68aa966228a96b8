"""Modules around the layers of a model, under the names that all other models have for them."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from transformers import PreTrainedModel


def rename_modules(model: PreTrainedModel, names: Mapping[str, str]) -> None:
    """Give them the names on the right; the model's own code finds them under both."""
    base: Any = model.base_model
    theirs = {name: own for name, own in names.items() if name in base._modules}
    if not theirs:
        return
    base._modules = {theirs.get(name, name): module for name, module in base._modules.items()}
    kind = type(base)
    found = {name: property(attrgetter(own)) for name, own in theirs.items()}
    base.__class__ = type(kind.__name__, (kind,), found)
