"""``spec.sandbox`` on its way to the children that run code of responses."""

import sys
from functools import cache

import msgspec

from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_trainer.sandbox.executor import Runner, Sandbox
from ppojob_trainer.sandbox.fusion import ANSWER_SECONDS, FusionSandbox
from ppojob_trainer.sandbox.levels import Level
from ppojob_trainer.sandbox.process import Limits


class SandboxSettings(msgspec.Struct, frozen=True):
    """``spec.sandbox``, for whoever runs the code of responses."""

    level: str
    memory_bytes: int
    seconds: float
    url: str = ""

    @classmethod
    def of(cls, spec: SandboxSpec) -> "SandboxSettings":
        """Those of a spec."""
        return cls(spec.level, spec.memory_mib << 20, spec.time_limit_seconds, spec.url or "")

    @property
    def answer_seconds(self) -> float:
        """What a program may take until its outcome is here."""
        return self.seconds + (ANSWER_SECONDS if self.url else 0.0)


@cache
def open_sandbox(settings: SandboxSettings) -> Runner:
    """Open it once a process, and print what stands around programs, for the log of the pod.

    Raises:
        SandboxRefused: this machine locks programs in less well than that.
    """
    limits = Limits(settings.seconds, settings.memory_bytes)
    opened: Runner
    if settings.url:
        opened = FusionSandbox(settings.url, limits)
    else:
        opened = Sandbox(limits, least=Level[settings.level.upper()])
    sys.stdout.write(f"{opened.description}\n")
    return opened
