"""What a pod runs, as it tells the controller: no tensor, no prompt."""

import hashlib
from importlib.metadata import distribution
from typing import Final

import msgspec

import ppojob_trainer
from ppojob_api.run_config import RunConfig

_PACKAGES: Final = ("ppojob_api/", "ppojob_trainer/")


class PodIdentity(msgspec.Struct, frozen=True):
    """What all pods of a job must have in common.

    Attributes:
        code: digest of the program.
        config: digest of the run, and of what decides its weights.
        models: digests of the folders that the pod reads, by their paths.
    """

    code: str
    config: str
    models: dict[str, str]


def code_digest() -> str:
    """SHA-256, in hex, of the sources that were installed, as their wheel lists them.

    A working tree has no such list: its version alone counts, since it changes under its developer.
    """
    digest = hashlib.sha256(ppojob_trainer.__version__.encode())
    for line in (distribution("ppojob").read_text("RECORD") or "").splitlines():
        if line.startswith(_PACKAGES) and "/__pycache__/" not in line:
            digest.update(line.encode())
    return digest.hexdigest()


def config_digest(config: RunConfig) -> str:
    """SHA-256, in hex, of what may not differ between the pods of a run.

    Loggers, limits and the length of the run may: they can be changed while it goes on, and a pod
    that is made again then reads the new ones.
    """
    return hashlib.sha256(config.uid.encode() + config.trajectory_json()).hexdigest()
