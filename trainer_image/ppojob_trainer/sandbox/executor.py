"""One executor for every program that nobody vouches for."""

import errno
import math
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from ppojob_trainer.sandbox import inside
from ppojob_trainer.sandbox.levels import Level, Walls, walls_here
from ppojob_trainer.sandbox.process import Limits, run_process

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
"""Told by the levels above `NONE`: a wall that is only said to be there is none."""


class SandboxRefused(Exception):  # noqa: N818  it says what happened
    """This machine locks programs in less well than the job asks for."""

    def __init__(self, got: str, least: Level) -> None:
        self.got = got
        self.why = f"code of responses is not run with less than {least.name.lower()}"
        self.allowed = "another machine, or a lower spec.sandbox.level"
        super().__init__(f"got {got}: {self.why}; {self.allowed}")


@dataclass(frozen=True, slots=True)
class Program:
    """Python code from somewhere.

    Attributes:
        prelude: our own code, which runs before it in the same module.
        function: an expression of our own that gives a function when the code has run; what it
            returns is handed out. Empty: the code is a whole program.
        arguments: of that function, a list in JSON.
        integer_keys: whether the keys of the first argument, an object, are integers.
    """

    code: str
    prelude: str = ""
    stdin: str = ""
    function: str = ""
    arguments: str = "[]"
    integer_keys: bool = False

    def told(self, nonce: str) -> dict[str, object]:
        """What its process is told of it: all but what stands in stdin."""
        message = {**asdict(self), "nonce": nonce}
        del message["stdin"]
        return message


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program.

    Attributes:
        answer: JSON of what the function returned; empty where there is none.
        is_well: whether it ended by itself, without an error, and within its limits.
        is_python: whether its code compiles, as far as its process says.
        stopped: the limit that it ran into: ``time``, ``output`` or ``threads``; empty if none.
    """

    stdout: bytes
    answer: bytes
    errors: bytes
    is_well: bool
    is_python: bool
    stopped: str


class Runner(Protocol):
    """Runs programs somewhere: in our own sandbox, or in a service."""

    @property
    def description(self) -> str:
        """What stands around them, for logs."""
        ...

    def run(self, program: Program) -> Outcome:
        """Run a program until it ends or meets a limit."""
        ...


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
            raise SandboxRefused(self.description, least)

    def run(self, program: Program) -> Outcome:
        """Run a program until it ends or meets a limit; nothing of it is left then."""
        return _run(self._walls, self.limits, program)


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
    message = program.told(nonce) | {
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
        ended = run_process(walls.command, body, stdin, limits)
    except OSError as error:
        if error.errno not in _PASSING:
            raise
        time.sleep(_WAIT_SECONDS)
        ended = run_process(walls.command, body, stdin, limits)
    return Outcome(
        stdout=ended.stdout,
        answer=_answer(ended.answer, nonce.encode()),
        errors=ended.errors,
        is_well=ended.status == 0 and not ended.stopped,
        is_python=ended.status != inside.NOT_PYTHON,
        stopped=ended.stopped,
    )


def _answer(given: bytes, nonce: bytes) -> bytes:
    """What was given out behind the nonce; anything else is no answer."""
    return given.removeprefix(nonce) if given.startswith(nonce) else b""


def _is_installed(path: Path) -> bool:
    """Whether modules there are the interpreter's: not ours, and not those of a job."""
    is_package_folder = path.name in ("site-packages", "dist-packages")
    return is_package_folder or path.is_relative_to(Path(sys.base_prefix))
