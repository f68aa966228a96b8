"""Execution of untrusted programs, in this machine's sandbox or in the job's service."""

import errno
import math
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from ppojob_trainer.sandbox.fusion import ANSWER_SECONDS, FusionSandbox
from ppojob_trainer.sandbox.levels import Isolation, Level, supported_isolation
from ppojob_trainer.sandbox.process import Limits, Outcome, Program, Usage, after_nonce, run_process

_OPEN_FILES = 64
_PASSING = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""Temporary errors of starting a process."""
_WAIT_SECONDS = 0.5
_REACHES_NOTHING = "it reaches nothing"


def trial(attempts: Mapping[str, str]) -> str:
    """Return a program that tests the isolation: it prints which attempts succeed.

    They are expressions by what they would reach.
    """
    return f"""
import _socket, os
reached = []
for name, attempt in {dict(attempts)!r}.items():
    try:
        eval(attempt)
    except OSError:
        continue
    reached.append(name)
print("it reaches", ", ".join(reached) or "nothing")
"""


def trial_problem(outcome: Outcome) -> str | None:
    """Return what a trial reached, or why it did not run; None if all is well."""
    lines = (outcome.stdout + outcome.errors).decode(errors="replace").strip().splitlines()
    if outcome.is_well and lines == [_REACHES_NOTHING]:
        return None
    others = [line for line in lines if line != _REACHES_NOTHING]
    return others[-1] if others else "the interpreter does not start"


_TRIAL = trial(
    {
        "the network": "_socket.socket()",
        "processes": "os.fork()",
        "files": "os.listdir('/etc')",
        "signals": "os.kill(os.getppid(), 0)",
    }
)
"""Run once at the levels above `NONE`."""


class Settings(msgspec.Struct, frozen=True):
    """``spec.sandbox`` as sent to children, which thus need not import its model."""

    level: str
    memory_mib: int
    time_limit_seconds: float
    url: str | None


class SandboxRefused(Exception):  # noqa: N818  it says what happened
    """This machine isolates programs less than the job requires."""


class Sandbox:
    """Runs programs, each with all isolation that this machine supports.

    `isolation` is what is tested, by default all that is supported. Raises SandboxRefused if the
    level is below ``least``.

    Attributes:
        isolation: what passed the test.
        level: its level.
        description: its level, and why it is not higher.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        least: Level = Level.RESTRICTED,
        isolation: Isolation | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.least = least
        self.isolation = tested(isolation or supported_isolation(), _trial_problem, least)
        self.level = self.isolation.level
        self.description = self.isolation.description

    def run(self, program: Program) -> Outcome:
        """Run a program until it ends or exceeds a limit; then all its processes are killed."""
        return _run(self.isolation, self.limits, program)


Runner = Sandbox | FusionSandbox
"""A sandbox: our own, or a service."""


def answer_seconds(spec: Settings) -> float:
    """Return the time limit of a program, including the way to a service."""
    return spec.time_limit_seconds + (ANSWER_SECONDS if spec.url else 0.0)


@cache
def open_sandbox(spec: Settings) -> Runner:
    """Open the sandbox once per process, or raise SandboxRefused; prints its description."""
    limits = Limits(spec.time_limit_seconds, spec.memory_mib << 20)
    opened: Runner
    if spec.url:
        opened = FusionSandbox(spec.url, limits)
    else:
        opened = Sandbox(limits, least=Level[spec.level.upper()])
    sys.stdout.write(f"{opened.description}\n")
    return opened


def tested(
    isolation: Isolation, problem: Callable[[Isolation], str | None], least: Level
) -> Isolation:
    """Return the isolation without the means that have a problem.

    Raises SandboxRefused if its level is then below `least`.
    """
    while isolation.level > Level.NONE and (reason := problem(isolation)) is not None:
        if isolation.level == Level.NAMESPACES:
            isolation = isolation.without_namespaces(reason)
        else:
            isolation = isolation.without_any(reason)
    if isolation.level < least:
        raise SandboxRefused(
            f"{isolation.description}: code of responses is not run below "
            f"{least.name.lower()}; another machine, or a lower spec.sandbox.level"
        )
    return isolation


def _trial_problem(isolation: Isolation) -> str | None:
    return trial_problem(_run(isolation, Limits(), Program(_TRIAL)))


def _run(isolation: Isolation, limits: Limits, program: Program) -> Outcome:
    nonce = secrets.token_hex(16)
    modules = [path for path in sys.path if _is_installed(Path(path))]
    message = program.message(nonce) | {"modules": modules}
    stdin = program.stdin.encode(errors="surrogatepass")
    outcome = run_isolated(isolation, limits, message, stdin)
    return replace(outcome, answer=after_nonce(outcome.answer, nonce))


def run_isolated(
    isolation: Isolation,
    limits: Limits,
    message: Mapping[str, object],
    stdin: bytes = b"",
    variables: Mapping[str, str] = MappingProxyType({}),
    exceeded: Callable[[Usage], str] = lambda _: "",
) -> Outcome:
    """Run what a message says, with an isolation; see `run_process`."""
    message = {
        "shell": None,
        "file_bytes": 0,
        "open_files": _OPEN_FILES,
        "memory_bytes": limits.memory_bytes,
        "cpu_seconds": math.ceil(limits.seconds),
        "landlock": isolation.landlock,
        "filter": isolation.filter,
        "readable": isolation.readable,
        "writable": isolation.writable,
        **message,
    }
    body = repr(message).encode(errors="surrogatepass")
    run = partial(run_process, isolation.command, body, stdin, limits, variables, exceeded)
    try:
        return run()
    except OSError as error:
        if error.errno not in _PASSING:
            raise
        time.sleep(_WAIT_SECONDS)
        return run()


def _is_installed(path: Path) -> bool:
    """Return whether a folder has the interpreter's modules, and not ours or a job's."""
    is_package_folder = path.name in ("site-packages", "dist-packages")
    return is_package_folder or path.is_relative_to(Path(sys.base_prefix))
