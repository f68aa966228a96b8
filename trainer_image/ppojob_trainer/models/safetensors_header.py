"""Which tensors a safetensors file holds, told without reading one of them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from ppojob_api.problem import Problem, printable
from ppojob_trainer.models.json_objects import unreadable
from ppojob_trainer.models.problems import ModelReason

FLOATS: Final = ("F16", "BF16", "F32", "F64")
"""Types that weights are trained from, in the words of the format."""

_POINTER: Final = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file; its type in the words of the format (`BF16`)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class BadHeader(Exception):  # noqa: N818  the header is bad
    """A file is no safetensors file, or not a whole one.

    Attributes:
        problem: what is wrong with it.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that a safetensors file says it holds, by name.

    Raises:
        BadHeader: it is none, or not a whole one.
    """
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_POINTER)) == _POINTER
    except OSError as error:
        raise BadHeader(unreadable(path, error)) from None
    if is_pointer:
        got, why = "a pointer file", "Git LFS left it in place of the weights"
        allowed = "the weights themselves: fetch the content (git lfs pull)"
        raise BadHeader(Problem(str(path), got, why, allowed, ModelReason.POINTER_FILE))
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
            return {
                name: StoredTensor(stored.get_dtype(), tuple(stored.get_shape()))
                for name, stored in slices.items()
            }
    except (SafetensorError, OSError) as error:
        got, why = "no whole file", printable(str(error))
        allowed = "a whole safetensors file; fetch or write it again"
        bad = Problem(str(path), got, why, allowed, ModelReason.BAD_SAFETENSORS)
        raise BadHeader(bad) from None
