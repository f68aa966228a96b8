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
        config: digest of the run, and of what decides its weights.
        models: digests of the folders that the pod reads, by their paths; without those that
            cannot be read; None until it has looked at them all, so that it is asked again.
        native_bfloat16: whether its processor multiplies bfloat16 natively, on which the types of
            numbers depend that the job leaves open.
    """

    code: str
    config: str
    models: dict[str, str] | None
    native_bfloat16: bool = False


def code_digest() -> str:
    """Digest of the program that is installed here."""
    record = distribution("ppojob").read_text("RECORD") or ""
    return program_digest(ppojob_trainer.__version__, record)


def program_digest(version: str, record: str) -> str:
    """SHA-256, in hex, of the sources of a program, as its wheel lists them.

    A working tree has no such list: its version alone counts, since it changes under its developer.

    `record` is the text of its RECORD: a file a line, with its digest, in an order that is the
    installer's, who adds lines of its own (https://packaging.python.org/en/latest/specifications/
    recording-installed-packages/).
    """
    sources = sorted(
        line
        for line in record.splitlines()
        if line.startswith(_PACKAGES) and "/__pycache__/" not in line
    )
    return hashlib.sha256("\n".join((version, *sources)).encode()).hexdigest()


def config_digest(config: RunConfig) -> str:
    """SHA-256, in hex, of what may not differ between the pods of a run.

    Loggers, limits and the length of the run may: they can be changed while it goes on, and a pod
    that is made again then reads the new ones.
    """
    return hashlib.sha256(config.uid.encode() + config.trajectory_json()).hexdigest()
