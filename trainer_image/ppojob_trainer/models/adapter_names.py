"""Names of the matrices of adapters: those here, by the weights that they change, and PEFT's.

Loads no torch.
"""

from typing import Final

from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.models.mixtures import STACKS

A: Final = "lora_a"
B: Final = "lora_b"
BEGINNING: Final = "base_model.model."
"""Of PEFT's names; what follows are the model's."""
LAYERS: Final = "model.layers"
"""The layers of a model, by their name here."""

_WEIGHT: Final = "weight"
PEFT_MATRICES: Final = {A: "lora_A.weight", B: "lora_B.weight"}


def matrix_names(weight: str) -> tuple[str, str]:
    """The names of A and B of a weight's adapter, which stand beside it.

    `<layer>.lora_a` for `<layer>.weight`, and for a stack of experts, which is no layer,
    `<stack>_lora_a`.
    """
    is_layer = weight.rpartition(".")[2] == _WEIGHT
    beside = weight.removesuffix(_WEIGHT) if is_layer else f"{weight}_"
    return f"{beside}{A}", f"{beside}{B}"


def weight_of(matrix: str) -> str:
    """The name of the weight that an adapter's matrix belongs to, as `matrix_names` has it."""
    beside = matrix[: -len(A)]
    return f"{beside}{_WEIGHT}" if beside.endswith(".") else beside[:-1]


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to an adapter."""
    return name.endswith((f".{A}", f".{B}", f"_{A}", f"_{B}"))


def peft_name(name: str, lora: LoraSpec, *, layers: str = LAYERS) -> str:
    """PEFT's name of an adapter's matrix, with the name that transformers has for the layers.

    It wraps the module of stacks once for each that it adapts, and so the first one is found within
    the wrapper of the second (`ParamWrapper` of PEFT 0.21).
    """
    weight, matrix = weight_of(name), name[-len(A) :]
    layer, _, own = weight.rpartition(".")
    first, second = STACKS
    if own == first and lora.adapts(f"{layer}.{second}"):
        layer = f"{layer}.base_layer"
    return f"{BEGINNING}{layer.replace(LAYERS, layers, 1)}.{PEFT_MATRICES[matrix]}"


def peft_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an adapter's matrix in PEFT's files, which have a stack as one matrix.

    Of A (e, rank, in) that is (e rank, in), of B (e, out, rank) it is (out, rank e).
    """
    if len(shape) < 3:
        return shape
    experts, rows, columns = shape
    return (experts * rows, columns) if name.endswith(A) else (rows, columns * experts)
