"""Whether two folders hold the same model, told without reading all of it.

Of weights, sizes, headers and the beginning of every tensor count: training changes nearly every
number of a model, so another one is noticed, in seconds also where all of it takes minutes. That a
file is damaged in the middle is not.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from ppojob_trainer.models.safetensors_header import read_header

_SMALL: Final = (".json", ".jinja", ".model", ".txt", ".py")
_WEIGHTS: Final = ".safetensors"
_SAMPLE_BYTES: Final = 256
_LENGTH_BYTES: Final = 8


def fingerprint(folder: Path) -> str:
    """SHA-256, in hex, of what tells a folder in Hugging Face form from others.

    Raises:
        OSError: the folder, or a file in it, cannot be read.
        BadHeader: a file of weights is none, or its header cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix not in (*_SMALL, _WEIGHTS):
            continue
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        if path.suffix == _WEIGHTS:
            _take_weights(digest, path)
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _take_weights(digest: "hashlib._Hash", path: Path) -> None:
    tensors = read_header(path)
    with path.open("rb") as file:
        first = _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), "little")
        digest.update(os.pread(file.fileno(), first - _LENGTH_BYTES, _LENGTH_BYTES))
        for tensor in tensors.values():
            begin, end = tensor.data_offsets
            digest.update(os.pread(file.fileno(), min(_SAMPLE_BYTES, end - begin), first + begin))
