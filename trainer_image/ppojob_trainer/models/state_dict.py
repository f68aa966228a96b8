"""The tensors of a model by their Hugging Face names."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from ppojob_trainer.parallel.boxes import box_of, local_part, whole


def hf_named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, detached, in the model's own order; cut over the ranks where it is.

    A tied weight comes under its first name only (the embedding's), as safetensors folders have it.
    Buffers that a folder does not hold (rotary frequencies) are left out.
    """
    for name, parameter in model.named_parameters(remove_duplicate=True):
        yield name, parameter.detach()


def named_full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, put together of all ranks' parts, one at a time.

    A collective where the model is cut: all ranks draw all of it, and one tensor is whole at a time
    unless it is kept.
    """
    for name, tensor in hf_named_tensors(model):
        yield name, whole(tensor)


def load_named_tensors(model: nn.Module, parts: Mapping[str, Tensor]) -> None:
    """Copy weights that `hf_named_tensors` gave into a model, in place.

    Args:
        model: of any number of ranks.
        parts: this rank's part of each weight.

    Raises:
        ValueError: a weight is missing, unknown, or of another shape.
    """
    weights = dict(hf_named_tensors(model))
    if differing := weights.keys() ^ parts.keys():
        raise ValueError(f"weights: got another set of names, such as {sorted(differing)[0]!r}")
    for name, weight in weights.items():
        shape = box_of(weight).local_shape
        if parts[name].shape != shape:
            raise ValueError(
                f"{name}: got shape {tuple(parts[name].shape)}: the model's is {shape}"
            )
        local_part(weight).copy_(parts[name])
