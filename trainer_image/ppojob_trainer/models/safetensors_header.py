"""The head of a safetensors file: which tensors lie where, judged without reading one of them.

Eight bytes of length (little endian), a JSON object of that length, then the tensors, one behind
the other without a gap (https://github.com/huggingface/safetensors#format).
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.json_objects import BadObject, parse_object, unreadable
from ppojob_trainer.models.problems import ModelReason

MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the reference reader."""

LISTED_TENSORS: Final = 5

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_MAX_AXES: Final = 16
_MAX_SIZE: Final = 2**63 - 1
_REWRITE: Final = "a whole safetensors file; fetch or write it again"

FLOAT_BITS: Final[Mapping[str, int]] = {"F16": 16, "BF16": 16, "F32": 32, "F64": 64}
"""Types that weights are trained from, and their sizes."""

_BITS: Final[Mapping[str, int]] = {
    **FLOAT_BITS,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16"), 16),
    **dict.fromkeys(("U32", "I32"), 32),
    **dict.fromkeys(("U64", "I64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        name: Hugging Face's.
        dtype: in the words of the format (`BF16`).
        shape: sizes of its axes.
        begin: its first byte, counted from the end of the header.
        end: the byte behind its last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class BadHeader(Exception):  # noqa: N818  the header is bad
    """A file is no safetensors file, or not a whole one.

    Attributes:
        problems: what is wrong with it, a few of many.
    """

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that a safetensors file says it holds.

    Raises:
        BadHeader: what it says cannot be so.
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
        entries = parse_object(text)
    except BadObject as bad:
        why = f"{bad.why} (the header at {bad.place})" if bad.place else bad.why
        raise BadHeader(_bad(str(path), bad.got, why)) from None
    notes = entries.pop(_METADATA, {})
    if not isinstance(notes, dict) or any(not isinstance(note, str) for note in notes.values()):
        raise BadHeader(_bad(f"{path}:{_METADATA}", shown(notes), "it holds texts by name"))
    return _judged(path, entries, size - _LENGTH_BYTES - length)


def _header_length(path: Path, head: bytes, size: int) -> int:
    if head == _POINTER:
        got = f"a pointer file of {size} bytes"
        why = "Git LFS left it in place of the weights"
        allowed = "the weights themselves: fetch the content (git lfs pull)"
        raise BadHeader(Problem(str(path), got, why, allowed, ModelReason.POINTER_FILE))
    if size < _LENGTH_BYTES:
        raise BadHeader(_bad(str(path), f"{size} bytes", "there is no header"))
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    got = f"a header of {length} bytes"
    if length > size - _LENGTH_BYTES:
        raise BadHeader(_bad(str(path), got, f"the file has {size} bytes"))
    if length > MAX_HEADER_BYTES:
        raise BadHeader(_bad(str(path), got, f"more than {MAX_HEADER_BYTES}"))
    return length


def _judged(path: Path, entries: dict[str, Json], data_bytes: int) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    problems: list[Problem] = []
    for name, entry in entries.items():
        read = _tensor(f"{path}:{name}", name, entry)
        if isinstance(read, StoredTensor):
            tensors[name] = read
        else:
            problems.append(read)
    # Where a tensor could not be read, its neighbours would seem to leave a gap.
    if not problems:
        problems += _misplaced(path, tensors, data_bytes)
    if problems:
        raise BadHeader(*problems[:LISTED_TENSORS])
    return tensors


def _tensor(where: str, name: str, entry: Json) -> StoredTensor | Problem:
    if not isinstance(entry, dict):
        return _bad(where, shown(entry), "it describes no tensor")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        return _bad(where, f"dtype {shown(dtype)}", f"it is none of {', '.join(_BITS)}")
    sizes = _sizes(shape)
    if sizes is None or len(sizes) > _MAX_AXES:
        return _bad(where, f"shape {shown(shape)}", "it is no list of sizes")
    places = _sizes(offsets)
    if places is None or len(places) != 2 or places[0] > places[1]:
        return _bad(where, f"offsets {shown(offsets)}", "they are no beginning and end")
    bits = math.prod(sizes) * _BITS[dtype]
    if bits != 8 * (places[1] - places[0]):
        why = f"shape {shown(shape)} of {dtype} takes {bits // 8} bytes"
        return _bad(where, f"offsets {shown(offsets)}", why)
    return StoredTensor(name, dtype, tuple(sizes), *places)


def _sizes(value: Json) -> list[int] | None:
    """A list of numbers that sizes and places can be; None for anything else."""
    if not isinstance(value, list):
        return None
    found = [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
    is_whole = len(found) == len(value) and all(0 <= item <= _MAX_SIZE for item in found)
    return found if is_whole else None


def _misplaced(path: Path, tensors: dict[str, StoredTensor], data_bytes: int) -> Iterator[Problem]:
    """Tensors that overlap or leave a gap, and an end that is not the file's."""
    end, before = 0, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != end:
            what = "they overlap" if tensor.begin < end else "a gap"
            got = f"offsets {shown([tensor.begin, tensor.end])}"
            yield _bad(f"{path}:{tensor.name}", got, f"{what}: {before} ends at {end}")
        end, before = max(end, tensor.end), tensor.name
    if end != data_bytes:
        yield _bad(str(path), f"{data_bytes} bytes of tensors", f"its header tells of {end}")


def _bad(where: str, got: str, why: str) -> Problem:
    return Problem(where, got, why, _REWRITE, ModelReason.BAD_SAFETENSORS)
