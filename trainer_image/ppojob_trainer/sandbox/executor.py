"""Execution of untrusted programs, in this machine's sandbox or in the job's service."""

import errno
import math
import secrets
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from ppojob_trainer.sandbox.fusion import ANSWER_SECONDS, FusionSandbox
from ppojob_trainer.sandbox.levels import Level, Walls, walls_here
from ppojob_trainer.sandbox.process import Limits, Outcome, Program, behind_nonce, run_process

_OPEN_FILES = 64
_PASSING = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""Why no process can be started now, and perhaps soon."""
_WAIT_SECONDS = 0.5
_TRIAL = """
import _socket, os
reached = []
def attempt(name, act):
    try:
        act()
    except OSError:
        return
    reached.append(name)
attempt("the network", _socket.socket)
attempt("processes", os.fork)
attempt("files", lambda: os.listdir("/etc"))
attempt("signals", lambda: os.kill(os.getppid(), 0))
print("it reaches", ", ".join(reached) or "nothing")
"""
"""Run once at the levels above `NONE`, to see that the walls hold."""


class Settings(msgspec.Struct, frozen=True):
    """``spec.sandbox``, as children are told: those that score have no time to load its model."""

    level: str
    memory_mib: int
    time_limit_seconds: float
    url: str | None


class SandboxRefused(Exception):  # noqa: N818  it says what happened
    """This machine isolates programs less than the job asks for."""


class Sandbox:
    """Runs programs, with all walls of this machine around each.

    Args:
        limits: of each program.
        least: the level that there must be.
        walls: to be tried; absent: all that are here.

    Attributes:
        level: the level that was found to hold.
        description: that, and what is lacking for the next.

    Raises:
        SandboxRefused: it is less than ``least``.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        least: Level = Level.RESTRICTED,
        walls: Walls | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._walls = _tried(walls or walls_here())
        self.level = self._walls.level
        lacking = f" ({self._walls.lacking})" if self._walls.lacking else ""
        self.description = f"sandbox level {self.level.name.lower()}{lacking}"
        if self.level < least:
            raise SandboxRefused(
                f"{self.description}: code of responses is not run with less than "
                f"{least.name.lower()}; another machine, or a lower spec.sandbox.level"
            )

    def run(self, program: Program) -> Outcome:
        """Run a program until it ends or meets a limit; nothing of it is left then."""
        return _run(self._walls, self.limits, program)


Runner = Sandbox | FusionSandbox
"""What runs programs: our own sandbox, or a service."""


def answer_seconds(spec: Settings) -> float:
    """What a program may take until its outcome is here."""
    return spec.time_limit_seconds + (ANSWER_SECONDS if spec.url else 0.0)


@cache
def open_sandbox(spec: Settings) -> Runner:
    """Open it once a process, and print what stands around programs, for the log of the pod.

    Raises:
        SandboxRefused: this machine isolates programs less than that.
    """
    limits = Limits(spec.time_limit_seconds, spec.memory_mib << 20)
    opened: Runner
    if spec.url:
        opened = FusionSandbox(spec.url, limits)
    else:
        opened = Sandbox(limits, least=Level[spec.level.upper()])
    sys.stdout.write(f"{opened.description}\n")
    return opened


def _tried(walls: Walls) -> Walls:
    """Those of the walls that hold a program which tries to get out."""
    while walls.level > Level.NONE:
        outcome = _run(walls, Limits(), Program(_TRIAL))
        said = (outcome.stdout + outcome.errors).decode(errors="replace").strip()
        if outcome.is_well and said == "it reaches nothing":
            return walls
        reason = said.splitlines()[-1] if said else "the interpreter does not start"
        if walls.level == Level.NAMESPACES:
            walls = walls.without_namespaces(reason)
        else:
            walls = walls.without_any(reason)
    return walls


def _run(walls: Walls, limits: Limits, program: Program) -> Outcome:
    nonce = secrets.token_hex(16)
    message = program.message(nonce) | {
        "modules": [path for path in sys.path if _is_installed(Path(path))],
        "memory_bytes": limits.memory_bytes,
        "cpu_seconds": math.ceil(limits.seconds),
        "open_files": _OPEN_FILES,
        "landlock": walls.landlock,
        "filter": walls.filter,
        "readable": walls.readable,
    }
    stdin = program.stdin.encode(errors="surrogatepass")
    body = repr(message).encode(errors="surrogatepass")
    try:
        outcome = run_process(walls.command, body, stdin, limits)
    except OSError as error:
        if error.errno not in _PASSING:
            raise
        time.sleep(_WAIT_SECONDS)
        outcome = run_process(walls.command, body, stdin, limits)
    return replace(outcome, answer=behind_nonce(outcome.answer, nonce))


def _is_installed(path: Path) -> bool:
    """Whether modules there are the interpreter's: not ours, and not those of a job."""
    is_package_folder = path.name in ("site-packages", "dist-packages")
    return is_package_folder or path.is_relative_to(Path(sys.base_prefix))
