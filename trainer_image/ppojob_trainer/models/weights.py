"""Index of a model folder's weights, from its files' headers; no tensor is read."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from ppojob_api.problem import Problem


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file; its dtype as the format writes it (`BF16`)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Location of the parts of a quantized tensor."""

    form: str  # its name in `quantised.FORMS`
    values: tuple[Path, str]  # the file of the values, and their name there
    scales: tuple[Path, str]  # the same of the scales
    block: tuple[int, int]  # rows and columns that share a scale; unused for mxfp4


@dataclass(slots=True)
class Weights:
    """Tensors of the files by name, and problems with them."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)  # as dequantized
    files: dict[str, Path] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)  # their names in the files
    quantised: dict[str, Quantised] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def form(self) -> str | None:
        """The quantization format; None without one."""
        return next((tensor.form for tensor in self.quantised.values()), None)
