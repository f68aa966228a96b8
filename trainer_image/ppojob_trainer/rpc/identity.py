"""Pod identity: all pods of a job must have the same code, configuration and models."""

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
    """Properties that must be equal in all pods of a job."""

    code: str
    config: str  # `config_digest`
    # path -> digest of the readable model folders; None until all are read
    models: dict[str, str] | None
    native_bfloat16: bool = False  # of the processor; it decides data types that are `auto`


def code_digest() -> str:
    """Return the digest of the installed program."""
    record = distribution("ppojob").read_text("RECORD") or ""
    return program_digest(ppojob_trainer.version(), record)


def program_digest(version: str, record: str) -> str:
    """Return the SHA-256, in hex, of version and sources.

    `record` is the RECORD of the wheel, with the digest of each file (https://packaging.python.org/
    en/latest/specifications/recording-installed-packages/). An editable installation lists no
    sources, so only its version counts.
    """
    sources = sorted(
        line
        for line in record.splitlines()
        if line.startswith(_PACKAGES) and "/__pycache__/" not in line
    )
    return hashlib.sha256("\n".join((version, *sources)).encode()).hexdigest()


def config_digest(config: RunConfig) -> str:
    """Return the SHA-256, in hex, of uid and settings that determine the weights.

    Other settings, such as loggers and time limits, may change during the run.
    """
    return hashlib.sha256(config.uid.encode() + config.trajectory_json()).hexdigest()


@dataclass
class Agreement:
    """Compares the identities of pods with that of the controller, and their models."""

    code: str
    config: str
    native_bfloat16: bool = False
    _models: dict[str, dict[str, str]] = field(default_factory=dict)

    def admit(self, pods: Sequence[str], identities: Sequence[PodIdentity]) -> list[str]:
        """Admit pods, possibly again; return those that have not read their models yet.

        ConfigError, with all differences, if pods differ.
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
