"""What part of a tensor a file of a commit holds, where a model is cut over ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from torch import Tensor

from ppojob_trainer.errors import DamagedCommit
from ppojob_trainer.parallel.fsdp import Extent, extent_of, local_part

EXTENTS: Final = "extents"
"""Key in the header's metadata; absent from a file of whole tensors."""


def extents_metadata(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Metadata of a file with this rank's parts of some tensors."""
    cut = {name: extent_of(t) for name, t in tensors.items() if local_part(t) is not t}
    return {EXTENTS: msgspec.json.encode(cut, order="sorted").decode()} if cut else {}


def read_extents(path: Path, tensors: Mapping[str, Tensor], name: str) -> dict[str, Extent]:
    """What each tensor of a file is of.

    Args:
        path: the file.
        tensors: as read from it.
        name: of the file, in errors.

    Raises:
        DamagedCommit: the metadata contradicts the tensors.
    """
    try:
        with path.open("rb") as file:
            header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
        text = header.get("__metadata__", {}).get(EXTENTS, "{}")
        cut = msgspec.json.decode(text, type=dict[str, Extent])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCommit(name, f"its extents do not parse: {error}") from error
    extents = {key: cut.get(key, extent_of(tensor)) for key, tensor in tensors.items()}
    for key, extent in extents.items():
        if extent.local_shape != tuple(tensors[key].shape):
            raise DamagedCommit(
                name, f"got {key} of shape {tuple(tensors[key].shape)}: its extent is {extent}"
            )
    return extents
