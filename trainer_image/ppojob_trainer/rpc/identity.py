"""Pod identity: checks that all pods of a job run the same code, config and models."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution
from typing import Final

import msgspec

import ppojob_trainer
from ppojob_api.run_config import RunConfig
from ppojob_trainer.errors import ConfigError

_SHOWN_DIGITS: Final = 12
_PACKAGES: Final = ("ppojob_api/", "ppojob_trainer/")


class PodIdentity(msgspec.Struct, frozen=True):
    """What all pods of a job must have in common.

    Attributes:
        config: digest of the run, and of what decides its weights.
        models: digests of the folders that the pod reads, by their paths, without unreadable ones;
            None until it has read them all, so that it is asked again.
        native_bfloat16: whether its processor multiplies bfloat16 natively, which decides data
            types that the job leaves open.
    """

    code: str
    config: str
    models: dict[str, str] | None
    native_bfloat16: bool = False


def code_digest() -> str:
    """Return the digest of the program that is installed here."""
    record = distribution("ppojob").read_text("RECORD") or ""
    return program_digest(ppojob_trainer.version(), record)


def program_digest(version: str, record: str) -> str:
    """Return the SHA-256, in hex, of the sources of a program, as its wheel lists them.

    A working tree has no such list: only its version counts, since it changes under its developer.

    `record` is the text of its RECORD: a file a line, with its digest. The order is the
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
    """Return the SHA-256, in hex, of settings that must not differ between the pods of a run.

    Loggers, limits and the length of the run may differ: they can be changed during the run, and a
    recreated pod then reads the new ones.
    """
    return hashlib.sha256(config.uid.encode() + config.trajectory_json()).hexdigest()


@dataclass
class Agreement:
    """Stores the identities of pods, and admits those that agree.

    The digests, and whether the processor multiplies bfloat16 natively, are the controller's.
    """

    code: str
    config: str
    native_bfloat16: bool = False
    _models: dict[str, dict[str, str]] = field(default_factory=dict)

    def admit(self, pods: Sequence[str], identities: Sequence[PodIdentity]) -> list[str]:
        """Admit pods, which may have been recreated since they were last seen.

        Returns those that have not read their models yet, which are to be asked again.

        Raises:
            ConfigError: one runs something else; all that differ are named.
        """
        problems = []
        for pod, identity in zip(pods, identities, strict=True):
            problems += _other(pod, identity.code, self.code, "program", "image")
            problems += self._of_config(pod, identity)
            self._models[pod] = identity.models or {}
        problems += self._of_models()
        if problems:
            raise ConfigError(problems)
        return [pod for pod, known in zip(pods, identities, strict=True) if known.models is None]

    def _of_config(self, pod: str, identity: PodIdentity) -> list[str]:
        if identity.config == self.config or identity.native_bfloat16 == self.native_bfloat16:
            return _other(pod, identity.config, self.config, "configuration", "ConfigMap")
        theirs, ours = (
            f"{'with' if native else 'without'} native bfloat16"
            for native in (identity.native_bfloat16, self.native_bfloat16)
        )
        return [
            f"{pod}: got a processor {theirs}: the controller's is {ours}, and types of numbers "
            "are auto; one kind of processor for all pods, or spec.training.autocast and the "
            "dtypes of spec.rollout and spec.rewardModel written out"
        ]

    def _of_models(self) -> list[str]:
        problems = []
        first: dict[str, tuple[str, str]] = {}
        for pod, models in self._models.items():
            for path, digest in models.items():
                other, known = first.setdefault(path, (pod, digest))
                if digest != known:
                    problems.append(
                        f"{path}: got {_short(digest)} in {pod} and {_short(known)} in {other}: "
                        "ranks must begin with the same weights; the same files in all pods"
                    )
        return problems


def _other(pod: str, theirs: str, ours: str, what: str, source: str) -> list[str]:
    if theirs == ours:
        return []
    return [
        f"{pod}: got {what} {_short(theirs)}: the controller's is {_short(ours)}; "
        f"one {source} for all pods of a job"
    ]


def _short(digest: str) -> str:
    return digest[:_SHOWN_DIGITS]
