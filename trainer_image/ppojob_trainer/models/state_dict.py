"""The tensors of a model by their Hugging Face names."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


def hf_named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, detached, in the model's own order.

    A tied weight comes under its first name only (the embedding's), as safetensors folders have it.
    Buffers that a folder does not hold (rotary frequencies) are left out.
    """
    for name, parameter in model.named_parameters(remove_duplicate=True):
        yield name, parameter.detach()


def load_named_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights that `hf_named_tensors` gave into a model, in place.

    Raises:
        ValueError: a weight is missing, unknown, or of another shape.
    """
    weights = dict(hf_named_tensors(model))
    if differing := weights.keys() ^ tensors.keys():
        raise ValueError(f"weights: got another set of names, such as {sorted(differing)[0]!r}")
    for name, weight in weights.items():
        if weight.shape != tensors[name].shape:
            raise ValueError(
                f"{name}: got shape {tuple(tensors[name].shape)}: the model's is "
                f"{tuple(weight.shape)}"
            )
        weight.copy_(tensors[name])
