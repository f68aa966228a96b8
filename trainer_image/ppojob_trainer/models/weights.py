"""The weights of a model's folder, as its files tell of them: no tensor is read."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from ppojob_api.problem import Problem


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file; its type in the words of the format (`BF16`)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Where the parts of a quantised tensor are.

    Attributes:
        form: its name in `quantised.FORMS`.
        values: the file of the numbers, and their name there.
        scales: the same of the scales.
        block: rows and columns of the last two dimensions that share a scale; of mxfp4 unused.
    """

    form: str
    values: tuple[Path, str]
    scales: tuple[Path, str]
    block: tuple[int, int]


@dataclass(slots=True)
class Weights:
    """What the files say, by names of tensors, and what is wrong with them.

    Files of a whole model that sees pictures may have other names for the same tensors: `stored`.
    Those that are quantised have the shape and the name of what is made of them: `quantised`.
    """

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    quantised: dict[str, Quantised] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def form(self) -> str | None:
        """The form of what is quantised; None where nothing is."""
        return next((tensor.form for tensor in self.quantised.values()), None)
