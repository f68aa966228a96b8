"""The tensors of a model by their Hugging Face names."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from ppojob_trainer.models.lora import adapters_of, is_adapter
from ppojob_trainer.parallel.boxes import box_of, local_part, whole


def hf_named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, detached, in the model's own order; cut over the ranks where the model is.

    A tied weight comes under its first name only (the embedding's), as safetensors folders have it.
    Buffers that a folder does not hold (rotary frequencies) are left out, and so are adapters: the
    weights are those without them.
    """
    for name, parameter in model.named_parameters(remove_duplicate=True):
        if not is_adapter(name):
            yield name, parameter.detach()


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: every weight, or where it has adapters what is trained.

    That is the adapters, and of a critic its head. Detached, under their own names; cut over the
    ranks where the model is.
    """
    if not adapters_of(model):
        return dict(hf_named_tensors(model))
    named = model.named_parameters()
    return {name: parameter.detach() for name, parameter in named if parameter.requires_grad}


def named_full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, put together of all ranks' parts, one at a time; with its adapter merged.

    Merged weights are float32, whatever the model's are. A collective where the model is cut: all
    ranks draw all of it, and one tensor is whole at a time unless it is kept.
    """
    adapters = adapters_of(model)
    for name, tensor in hf_named_tensors(model):
        yield name, adapters[name].merged(tensor) if name in adapters else whole(tensor)


def load_named_tensors(model: nn.Module, parts: Mapping[str, Tensor]) -> None:
    """Copy this rank's parts of `trained_tensors` into a model of any number of ranks, in place.

    Raises:
        ValueError: a weight is missing, unknown, or of another shape.
    """
    weights = trained_tensors(model)
    if differing := weights.keys() ^ parts.keys():
        raise ValueError(f"weights: got another set of names, such as {sorted(differing)[0]!r}")
    for name, weight in weights.items():
        shape = box_of(weight).local_shape
        if parts[name].shape != shape:
            raise ValueError(
                f"{name}: got shape {tuple(parts[name].shape)}: the model's is {shape}"
            )
        local_part(weight).copy_(parts[name])
