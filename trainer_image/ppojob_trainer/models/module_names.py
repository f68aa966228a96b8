"""Common module names for transformers models of all families."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ppojob_trainer.models.architectures import EMBEDDING, HEAD
from ppojob_trainer.models.family import Family


def rename_modules(model: PreTrainedModel, family: Family) -> None:
    """Rename the modules of a model, and those around its layers, to the common names."""
    base: Any = model.base_model
    if (inner := base._modules.get(family.inner)) is not None:
        _find(inner, {family.inner: lambda own: own})
        setattr(model, model.base_model_prefix, inner)
        base = inner
    _rename(base, family.modules)
    if base is not model:
        _rename(model, family.whole_modules)
    if model.all_tied_weights_keys:
        model.all_tied_weights_keys = {HEAD: EMBEDDING}


def _rename(owner: nn.Module, names: Mapping[str, str]) -> None:
    """Rename modules to the names on the right; the owner's code finds them under both."""
    held = owner._modules
    theirs = {name: own for name, own in names.items() if name in held}
    if theirs:
        owner._modules = {theirs.get(name, name): module for name, module in held.items()}
        _find(owner, {name: attrgetter(own) for name, own in theirs.items()})


def _find(owner: nn.Module, what: Mapping[str, Callable[[Any], object]]) -> None:
    """Give a module computed attributes."""
    kind = type(owner)
    found = {name: property(find) for name, find in what.items()}
    owner.__class__ = type(kind.__name__, (kind,), found)
