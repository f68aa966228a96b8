"""``spec.sandbox`` on its way to the children that run code of responses."""

import sys

import msgspec

from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_trainer.sandbox.executor import Sandbox
from ppojob_trainer.sandbox.levels import Level
from ppojob_trainer.sandbox.process import Limits


class SandboxSettings(msgspec.Struct, frozen=True):
    """``spec.sandbox``, for whoever runs the code of responses."""

    level: str
    memory_bytes: int
    seconds: float

    @classmethod
    def of(cls, spec: SandboxSpec) -> "SandboxSettings":
        """Those of a spec."""
        return cls(spec.level, spec.memory_mib << 20, spec.time_limit_seconds)

    def open(self) -> Sandbox:
        """Open it, and print its level, which goes to the log of the pod.

        Raises:
            SandboxRefused: this machine locks programs in less well than that.
        """
        limits = Limits(self.seconds, self.memory_bytes)
        opened = Sandbox(limits, least=Level[self.level.upper()])
        sys.stdout.write(f"{opened.description}\n")
        return opened
