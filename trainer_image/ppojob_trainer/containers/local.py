"""Containers of docker or podman on this machine, for `ppojob run`."""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ppojob_api import contract
from ppojob_api.v1alpha1.agent import ContainersSpec
from ppojob_trainer.containers.shell import (
    FIRST_PROCESS,
    ContainerNotStarted,
    Executed,
    digest_of,
    run_from_stdin,
)
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.sandbox.process import Traffic, raw

_UNITS: Final = {
    **{"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40},
}
"""Units of Kubernetes' quantities."""
_NAME: Final = re.compile(r"ppojob-(?P<machine>[0-9a-f]{8})-(?P<owner>\d+)-[0-9a-f]{16}")
"""Names of our containers: where the process is that made one, and its id."""
_ANSWER_SECONDS: Final = 60.0
_PROCESSES: Final = 1024
_WHY_CHARACTERS: Final = 500


def working_command() -> Sequence[str] | str:
    """Return the first command that answers, or why none does."""
    given = os.environ.get(contract.ENV_CONTAINER_COMMAND)
    commands = [shlex.split(given)] if given else [["docker"], ["podman"]]
    wrong = f"{' and '.join(one[0] for one in commands)}: not installed"
    for command in commands:
        if shutil.which(command[0]) is not None:
            done = _run((*command, "ps", "--quiet"))
            if done.returncode == 0:
                return command
            wrong = _why(done)
    return wrong


def delete_leftovers(command: Sequence[str] | None = None) -> None:
    """Delete the containers of processes that have ended, by the working command."""
    found = command or working_command()
    if isinstance(found, str):
        return
    listed = (*found, "ps", "--all", "--filter", "name=ppojob-", "--format", "{{.Names}}")
    for name in _run(listed).stdout.decode().split():
        ours = _NAME.fullmatch(name)
        if ours is None or ours["machine"] != _machine():
            continue
        if not Path("/proc", ours["owner"]).exists():
            _delete(found, name)


class LocalContainers:
    """Starts containers; raises ConfigError if nothing here can."""

    def __init__(self, spec: ContainersSpec) -> None:
        command = working_command()
        if isinstance(command, str):
            raise ConfigError(f"docker or podman: got nothing: {command}; one of them")
        self._spec, self._command = spec, command
        delete_leftovers(command)

    def open(self, row: str, image: str) -> "_LocalContainer":
        """Start the container of a row; see `OpenContainer`."""
        name, spec = f"ppojob-{_machine()}-{os.getpid()}-{digest_of(row)}", self._spec
        _delete(self._command, name)
        user = () if spec.user is None else ("--user", str(spec.user))
        runtime = () if spec.runtime_class_name is None else ("--runtime", spec.runtime_class_name)
        started = _run(
            (
                *(*self._command, "run", "--detach", "--name", name, "--hostname", "row"),
                *("--network", "none", "--cpus", f"{_number(spec.cpu):g}"),
                *("--memory", f"{_number(spec.memory):.0f}", "--pids-limit", str(_PROCESSES)),
                *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", *user, *runtime),
                *("--log-driver", "none", "--entrypoint", "sh", image, *FIRST_PROCESS),
            ),
            spec.start_seconds,
        )
        if started.returncode != 0:
            _delete(self._command, name)
            raise ContainerNotStarted(f"image {image}: {_why(started)}")
        return _LocalContainer(self._command, name)


class _LocalContainer:
    def __init__(self, command: Sequence[str], name: str) -> None:
        self._command, self._name = command, name

    def execute(self, script: bytes, seconds: float, most_bytes: int) -> Executed:
        command = (
            *self._command,
            "exec",
            "--interactive",
            self._name,
            *run_from_stdin(len(script)),
        )
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
        _delete(self._command, self._name)


@cache
def _machine() -> str:
    """Return a name for where process ids are ours: this container, since the machine's start."""
    booted = Path("/proc/sys/kernel/random/boot_id").read_text()
    seen = f"{booted} {os.readlink('/proc/self/ns/pid')}"
    return hashlib.sha256(seen.encode()).hexdigest()[:8]


def _delete(command: Sequence[str], name: str) -> None:
    _run((*command, "rm", "--force", "--volumes", name))


def _number(quantity: str) -> float:
    digits = quantity.rstrip("mkMGTi")
    return float(digits) * _UNITS[quantity.removeprefix(digits)]


def _run(
    command: Sequence[str], seconds: float = _ANSWER_SECONDS
) -> "subprocess.CompletedProcess[bytes]":
    null = subprocess.DEVNULL
    try:
        return subprocess.run(
            command, stdin=null, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"{command[0]}: no answer in {seconds:g} s".encode()
        return subprocess.CompletedProcess(command, 1, b"", why)


def _why(done: "subprocess.CompletedProcess[bytes]") -> str:
    return " ".join(done.stderr.decode(errors="replace").split())[-_WHY_CHARACTERS:]
