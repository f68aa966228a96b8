"""Whether two folders hold the same model, told without reading all of it.

Of weights the file sizes, headers and the beginning of every tensor are compared. Training changes
nearly every number of a model, so another model is noticed, in seconds where reading all of it
takes minutes. A file that is damaged in the middle is not noticed.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.training import CriticSpec, ModelSpec
from ppojob_trainer.models.weight_files import BadHeader, read_header

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
    return _digest(folder, (*_SMALL, _WEIGHTS))


def bases_of(spec: PPOJobSpec) -> dict[str, str]:
    """Fingerprints of the weights below a resolved job's adapters, by the fields of their folders.

    Without those that cannot be read.
    """
    models: dict[str, ModelSpec | CriticSpec | None] = {
        "spec.model.path": spec.model,
        "spec.critic.path": spec.critic,
    }
    found = {
        where: base_of(model.path)
        for where, model in models.items()
        if model is not None and model.lora is not None and model.path is not None
    }
    return {where: base for where, base in found.items() if base is not None}


def base_of(folder: str) -> str | None:
    """The fingerprint of a folder's weights alone; None where they cannot be read."""
    try:
        return _digest(Path(folder), (_WEIGHTS,))
    except (OSError, BadHeader):
        return None


def _digest(folder: Path, suffixes: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix not in suffixes:
            continue
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        if path.suffix == _WEIGHTS:
            _add_weights(digest, path)
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _add_weights(digest: "hashlib._Hash", path: Path) -> None:
    read_header(path)  # which refuses what is no whole file
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = file.read(length)
        digest.update(header)
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        for entry in entries.values():
            begin, end = entry["data_offsets"]
            place = _LENGTH_BYTES + length + begin
            digest.update(os.pread(file.fileno(), min(_SAMPLE_BYTES, end - begin), place))
