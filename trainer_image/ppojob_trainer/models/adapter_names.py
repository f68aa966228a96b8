"""Names of adapter tensors, here (after their weights) and in PEFT; does not import torch."""

from typing import Final

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.models.mixtures import STACKS

A: Final = "lora_a"
B: Final = "lora_b"
M: Final = "lora_m"
"""Of DoRA magnitudes, one per row of a weight: trained with `weightDecomposed`."""
BEGINNING: Final = "base_model.model."
"""Prefix of PEFT's names; the model's name follows."""
LAYERS: Final = "model.layers"
"""The decoder layers of a model, by their name here."""

_WEIGHT: Final = "weight"
PEFT_MATRICES: Final = {A: "lora_A.weight", B: "lora_B.weight"}
_PEFT_NAMES: Final = {**PEFT_MATRICES, M: "lora_magnitude_vector"}


def matrix_names(weight: str) -> tuple[str, str]:
    """Return the names of A and B of a weight's adapter.

    `<layer>.lora_a` for `<layer>.weight`, and for stacked experts `<stack>_lora_a`.
    """
    is_layer = weight.rpartition(".")[2] == _WEIGHT
    prefix = weight.removesuffix(_WEIGHT) if is_layer else f"{weight}_"
    return f"{prefix}{A}", f"{prefix}{B}"


def magnitude_name(weight: str) -> str:
    """Return the name of a weight's DoRA magnitudes."""
    return f"{weight.removesuffix(_WEIGHT)}{M}"


def is_magnitude(name: str) -> bool:
    """Whether a tensor of this name holds DoRA magnitudes."""
    return name.endswith(f".{M}")


def weight_of(matrix: str) -> str:
    """Return the name of the weight that an adapter tensor of this name belongs to."""
    prefix = matrix[: -len(A)]
    return f"{prefix}{_WEIGHT}" if prefix.endswith(".") else prefix[:-1]


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to an adapter."""
    return name.endswith((f".{A}", f".{B}", f"_{A}", f"_{B}", f".{M}"))


def peft_name(name: str, lora: LoraSpec, *, layers: str = LAYERS) -> str:
    """Return PEFT's name of an adapter tensor; `layers`: transformers' name of decoder layers.

    PEFT wraps the module of stacked experts once for each adapted stack, so the first one's wrapper
    is inside that of the second (`ParamWrapper` of PEFT 0.21).
    """
    weight, matrix = weight_of(name), name[-len(A) :]
    layer, _, own = weight.rpartition(".")
    first, second = STACKS
    if own == first and lora.adapts(f"{layer}.{second}"):
        layer = f"{layer}.base_layer"
    return f"{BEGINNING}{layer.replace(LAYERS, layers, 1)}.{_PEFT_NAMES[matrix]}"


def saved_name(name: str) -> str:
    """Return PEFT's name of a weight that is trained whole."""
    return f"{BEGINNING}{name}"


def peft_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an adapter tensor's shape in PEFT's files, which flatten stacked experts to a matrix.

    A (e, rank, in) becomes (e rank, in), and B (e, out, rank) becomes (out, rank e).
    """
    if len(shape) < 3:
        return shape
    experts, rows, columns = shape
    return (experts * rows, columns) if name.endswith(A) else (rows, columns * experts)
