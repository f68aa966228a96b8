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
    """Location of the parts of a quantized tensor.

    Attributes:
        form: its name in `quantised.FORMS`.
        values: the file of the values, and their name there.
        scales: the same of the scales.
        block: rows and columns of the last two dimensions that share a scale; of mxfp4 unused.
    """

    form: str
    values: tuple[Path, str]
    scales: tuple[Path, str]
    block: tuple[int, int]


@dataclass(slots=True)
class Weights:
    """Tensors of the files by name, and problems with them.

    Multimodal models' files may have other names for them: `stored`. Quantized tensors have the
    shape and name of the dequantized ones: `quantised`.
    """

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    quantised: dict[str, Quantised] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def form(self) -> str | None:
        """The quantization format; None without one."""
        return next((tensor.form for tensor in self.quantised.values()), None)
