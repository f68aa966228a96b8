"""Fingerprints of model folders: whether two hold the same model, without reading all of it.

Of weights the file sizes, headers and the first bytes of every tensor are hashed: training changes
nearly every number. Damage in the middle of a file is not noticed.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.models.weight_files import BadHeader, read_header

_SMALL: Final = (".json", ".jinja", ".model", ".txt", ".py")
_WEIGHTS: Final = ".safetensors"
_SAMPLE_BYTES: Final = 256
_LENGTH_BYTES: Final = 8


def fingerprint(folder: Path) -> str:
    """Return the SHA-256, in hex, that identifies a folder in Hugging Face form.

    Raises:
        OSError: the folder, or a file in it, cannot be read.
        BadHeader: a weight file is no safetensors file, or its header cannot be read.
    """
    return _digest(folder, (*_SMALL, _WEIGHTS))


def bases_of(spec: PPOJobSpec) -> dict[str, str]:
    """Fingerprint the readable base models of a job's adapters, by the fields of their folders."""
    models = {"spec.model.path": spec.model, "spec.critic.path": spec.critic}
    return {
        where: base
        for where, model in models.items()
        if model and model.lora and model.path and (base := base_of(model.path)) is not None
    }


def base_of(folder: str) -> str | None:
    """Fingerprint only the weights of a folder; None where they cannot be read."""
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
    read_header(path)  # refuses truncated files
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
