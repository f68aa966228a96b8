"""Failpoints: named places where a test can kill, stop or fail this process.

A point is declared in the module that hits it; every durable operation has one before and after::

    STEP_DONE = failpoints.declare("controller.step.done")
    ...
    failpoints.hit(STEP_DONE)

A hit does nothing unless the environment arms the point (syntax of etcd's gofail):

- ``PPOJOB_ENABLE_FAILPOINTS=1`` must be set, else an armed variable is refused;
- ``PPOJOB_FAILPOINT="<name>[@<n>]=<kill|kill_group|stop|raise>[;...]"`` fires at the n-th hit
  (default the first) in a process: SIGKILL to itself or to its process group, SIGSTOP, or
  ``InjectedFault``;
- ``PPOJOB_FAILPOINT_ONCE=<folder>`` makes each point fire once over all processes and restarts: a
  marker file is created there first.
"""

import os
import re
import signal
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ppojob_trainer.errors import ConfigError, InjectedFault

ENABLE_VARIABLE: Final = "PPOJOB_ENABLE_FAILPOINTS"
POINT_VARIABLE: Final = "PPOJOB_FAILPOINT"
ONCE_VARIABLE: Final = "PPOJOB_FAILPOINT_ONCE"

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_ARMING = re.compile(r"(?P<name>[^@=]+)(@(?P<nth>[0-9]+))?=(?P<action>.*)")


class Action(StrEnum):
    """Effect of a fired point."""

    KILL = "kill"
    KILL_GROUP = "kill_group"
    STOP = "stop"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class Armed:
    """One point of the environment variable; it fires at the `nth` hit, from 1, in a process."""

    name: str
    nth: int
    action: Action

    def __str__(self) -> str:
        return f"{self.name}@{self.nth}={self.action}"


class _Plan:
    """The armed points of this process and how often each was hit."""

    def __init__(self, armed: Iterable[Armed], once: Path | None) -> None:
        self.armed = tuple(armed)
        self._once = once
        self._hits: dict[str, int] = {}
        self._lock = threading.Lock()

    def hit(self, name: str) -> None:
        assert name in _declared, f"failpoint {name} was never declared"
        with self._lock:
            count = self._hits[name] = self._hits.get(name, 0) + 1
        for point in self.armed:
            if point.name == name and point.nth == count and self._is_first(point):
                _fire(point)

    def _is_first(self, point: Armed) -> bool:
        """Create the marker of a point; return False if it exists."""
        if self._once is None:
            return True
        try:
            marker = os.open(self._once / str(point), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        os.close(marker)
        return True


_declared: set[str] = set()
_plan: _Plan | None = None  # None: the environment was not read yet


def declare(name: str) -> str:
    """Register a point; return its name."""
    assert _NAME.fullmatch(name), f"failpoint name {name!r} is not dotted lower-case words"
    assert name not in _declared, f"failpoint {name} is declared twice"
    _declared.add(name)
    return name


def all_points() -> tuple[str, ...]:
    """Return the sorted names of all points of the imported modules, for kill tests."""
    return tuple(sorted(_declared))


def parse(environ: Mapping[str, str]) -> tuple[Armed, ...]:
    """Parse the environment variable; ConfigError if it is invalid or not enabled."""
    text = environ.get(POINT_VARIABLE, "")
    if not text:
        return ()
    if environ.get(ENABLE_VARIABLE) != "1":
        raise ConfigError(
            f"{POINT_VARIABLE}: got {text!r}: failpoints are for tests and kill this process; "
            f"unset it, or set {ENABLE_VARIABLE}=1"
        )
    armed = []
    for part in text.split(";"):
        match = _ARMING.fullmatch(part.strip())
        action = match["action"] if match else ""
        nth = int(match["nth"] or 1) if match else 0
        if match is None or action not in list(Action) or nth < 1:
            raise ConfigError(
                f"{POINT_VARIABLE}: got {part!r}: not a failpoint; "
                f"write <name>[@<n, from 1>]=<{'|'.join(Action)}>"
            )
        armed.append(Armed(name=match["name"], nth=nth, action=Action(action)))
    return tuple(armed)


def arm(environ: Mapping[str, str] | None = None) -> None:
    """Read the environment; the first `hit` does so if no entry point has. Raises as `parse`."""
    global _plan
    environ = os.environ if environ is None else environ
    folder = environ.get(ONCE_VARIABLE)
    _plan = _Plan(parse(environ), Path(folder) if folder else None)


def hit(name: str) -> None:
    """Pass a point, and fire it if it is armed; InjectedFault if armed with ``raise``."""
    if _plan is None:
        arm()
    assert _plan is not None
    if _plan.armed:
        _plan.hit(name)


def _fire(point: Armed) -> None:
    match point.action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.KILL_GROUP:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case Action.STOP:
            # A signal to the process may stop another thread first, and this one would go on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case Action.RAISE:
            raise InjectedFault(f"failpoint {point} fired")
