"""The head of a safetensors file: which tensors lie where, told without reading one of them.

Eight bytes of length (little endian), a JSON object of that length, then the tensors, one behind
the other without a gap (https://github.com/huggingface/safetensors#format). Whether a file is there
as a whole is judged here; everything else is for the library, which loads it.
"""

import math
import os
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import Problem, printable
from ppojob_trainer.models.json_objects import unreadable
from ppojob_trainer.models.problems import ModelReason

FLOATS: Final = ("F16", "BF16", "F32", "F64")
"""Types that weights are trained from, in the words of the format."""

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_REWRITE: Final = "a whole safetensors file; fetch or write it again"


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor of a file.

    Attributes:
        dtype: in the words of the format (`BF16`).
        shape: sizes of its axes.
        data_offsets: its first byte, counted from the end of the header, and the one behind its
            last.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

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
            size = os.fstat(file.fileno()).st_size
            head = file.read(len(_POINTER))
            length = _header_length(path, head, size)
            file.seek(_LENGTH_BYTES)
            text = file.read(length)
    except OSError as error:
        raise BadHeader(unreadable(path, error)) from None
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries.pop(_METADATA, None)
        tensors = {
            name: msgspec.json.decode(entry, type=StoredTensor) for name, entry in entries.items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _bad(path, "a header that cannot be read", printable(str(error))) from None
    data_bytes = size - _LENGTH_BYTES - length
    end = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if end != data_bytes:
        raise _bad(path, f"{data_bytes} bytes of tensors", f"its header tells of {end}")
    return tensors


def _header_length(path: Path, head: bytes, size: int) -> int:
    if head == _POINTER:
        got = f"a pointer file of {size} bytes"
        why = "Git LFS left it in place of the weights"
        allowed = "the weights themselves: fetch the content (git lfs pull)"
        raise BadHeader(Problem(str(path), got, why, allowed, ModelReason.POINTER_FILE))
    if size < _LENGTH_BYTES:
        raise _bad(path, f"{size} bytes", "there is no header")
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > size - _LENGTH_BYTES:
        raise _bad(path, f"a header of {length} bytes", f"the file has {size} bytes")
    return length


def _bad(path: Path, got: str, why: str) -> BadHeader:
    return BadHeader(Problem(str(path), got, why, _REWRITE, ModelReason.BAD_SAFETENSORS))
