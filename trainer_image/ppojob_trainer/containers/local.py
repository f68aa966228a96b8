"""Containers of docker or podman on this machine, for `ppojob run`."""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ppojob_api.v1alpha1.agent import ContainersSpec
from ppojob_trainer.containers.shell import FIRST_PROCESS, ContainerLost, Executed, prologue
from ppojob_trainer.sandbox.process import Traffic, raw

ENV_COMMAND: Final = "PPOJOB_CONTAINER_COMMAND"
"""The program and its first arguments, instead of docker or podman."""

_PROGRAMS: Final = ("docker", "podman")
_UNITS: Final = {
    **{"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40},
}
"""Units of Kubernetes' quantities."""
_NAME: Final = re.compile(r"ppojob-(?P<owner>\d+)-[0-9a-f]{16}")
"""Names of our containers, with the process that deletes them."""
_ANSWER_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_PROCESSES: Final = 1024
_WHY_CHARACTERS: Final = 500


def command_problem() -> str | None:
    """Return why no containers can be started here; None if they can."""
    wrong = "neither docker nor podman is installed"
    for command in _commands():
        if shutil.which(command[0]) is not None:
            done = _run((*command, "ps", "--quiet"))
            if done.returncode == 0:
                return None
            wrong = _why(done)
    return wrong


class LocalContainers:
    """Starts containers, and deletes those that an ended process has left."""

    def __init__(self, spec: ContainersSpec) -> None:
        self._spec = spec
        self._command = next(one for one in _commands() if shutil.which(one[0]) is not None)
        listed = (*self._command, "ps", "--all", "--filter", "name=ppojob-", "--format")
        for name in _run((*listed, "{{.Names}}")).stdout.decode().split():
            ours = _NAME.fullmatch(name)
            if ours is not None and not Path("/proc", ours["owner"]).exists():
                self._delete(name)

    def open(self, row: str, image: str, closed: threading.Event) -> "_LocalContainer":
        """Start the container of a row; see `OpenContainer`."""
        name = f"ppojob-{os.getpid()}-{hashlib.sha256(row.encode()).hexdigest()[:16]}"
        self._delete(name)
        spec = self._spec
        user = () if spec.user is None else ("--user", str(spec.user))
        runtime = () if spec.runtime_class_name is None else ("--runtime", spec.runtime_class_name)
        started = _run(
            (
                *(*self._command, "run", "--detach", "--name", name, "--hostname", "row"),
                *("--network", "none", "--cpus", f"{_number(spec.cpu):g}"),
                *("--memory", f"{_number(spec.memory):.0f}", "--pids-limit", str(_PROCESSES)),
                *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", *user, *runtime),
                *("--entrypoint", "sh", image, *FIRST_PROCESS),
            ),
            spec.start_seconds,
            closed,
        )
        if closed.is_set():
            self._delete(name)
            raise ContainerLost("the server of tools ends")
        if started.returncode != 0:
            raise RuntimeError(f"image {image}: the container did not start: {_why(started)}")
        return _LocalContainer(self._command, name)

    def _delete(self, name: str) -> None:
        _run((*self._command, "rm", "--force", name))


class _LocalContainer:
    def __init__(self, command: Sequence[str], name: str) -> None:
        self._command, self._name = command, name

    def execute(self, script: bytes, seconds: float, most_bytes: int) -> Executed:
        command = (*self._command, "exec", "--interactive", self._name, *prologue(len(script)))
        with contextlib.ExitStack() as opened:
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
            opened.callback(process.wait)
            opened.callback(process.kill)
            out, errors = raw(process.stdout, opened), raw(process.stderr, opened)
            taken = {out: bytearray(), errors: bytearray()}
            traffic = Traffic({raw(process.stdin, opened): script}, taken)
            opened.callback(traffic.selector.close)
            until, stopped = time.monotonic() + seconds, ""
            while not stopped and not (out.closed and errors.closed):
                traffic.move(max(0.0, until - time.monotonic()))
                if time.monotonic() >= until:
                    stopped = "time"
                elif traffic.taken_bytes > most_bytes:
                    stopped = "output"
            return Executed(bytes(taken[out]), bytes(taken[errors]), stopped)

    def close(self) -> None:
        _run((*self._command, "rm", "--force", self._name))


def _number(quantity: str) -> float:
    digits = quantity.rstrip("mkMGTi")
    return float(digits) * _UNITS[quantity.removeprefix(digits)]


def _commands() -> list[list[str]]:
    given = os.environ.get(ENV_COMMAND)
    return [shlex.split(given)] if given else [[one] for one in _PROGRAMS]


def _run(
    command: Sequence[str],
    seconds: float = _ANSWER_SECONDS,
    closed: threading.Event | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command, until its time limit or until `closed` is set."""
    pipe, until = subprocess.PIPE, time.monotonic() + seconds
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        while True:
            try:
                output, errors = process.communicate(timeout=_LOOK_SECONDS)
                return subprocess.CompletedProcess(command, process.returncode, output, errors)
            except subprocess.TimeoutExpired:
                if time.monotonic() > until or (closed is not None and closed.is_set()):
                    process.kill()
                    why = f"{command[0]}: no answer in {seconds:g} s".encode()
                    return subprocess.CompletedProcess(command, 1, b"", why)


def _why(done: "subprocess.CompletedProcess[bytes]") -> str:
    return " ".join(done.stderr.decode(errors="replace").split())[-_WHY_CHARACTERS:]
