"""Shell in a container: commands one at a time, of which only their files stay.

A command comes with the files that are written before it, as one script for `sh`, through standard
input: an argument could be too long. Before and behind it all processes of the container but the
first are killed. A random mark behind its errors tells that it came to its end.
"""

import hashlib
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from ppojob_trainer.errors import StateLost
from ppojob_trainer.sandbox.process import Outcome

FIRST_PROCESS: Final = ("-c", "while :; do sleep 3600 & wait $!; done")
"""Arguments of `sh` as the first process of a container: it reaps orphans, and no signal from the
container ends it."""

_OUTPUT_BYTES: Final = 1 << 20
_KILL: Final = "kill -9 -1"  # all processes of the container but the first and this one
_KILL_SECONDS: Final = 30.0
_KILLED_STATUS: Final = 137


class ContainerLost(StateLost):
    """The container has ended, with all files in it; the text says why."""


class ContainerNotStarted(StateLost):
    """The container did not start; the text says why."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What a script has written, and the limit that it exceeded: `time`, `output` or none."""

    stdout: bytes
    stderr: bytes
    stopped: str = ""


class Container(Protocol):
    """A running container."""

    def execute(self, script: bytes, seconds: float, most_bytes: int) -> Executed:
        """Run a script with `sh`. One that exceeds a limit is left alone.

        Raises ContainerLost if the container does not run, as far as is known by then.
        """
        ...

    def close(self) -> None:
        """Delete the container. Idempotent."""
        ...


OpenContainer = Callable[[str, str], Container]
"""(name of the row, image) -> its container, behind an earlier one of the row.

Raises ContainerNotStarted, and ContainerLost if the container has started and is lost.
"""


class ContainerShell:
    """Runs the commands of a row in a container.

    Args:
        seconds: time limit of a command.
        folder: where commands start; empty: the working folder of the image.
        activate: what each command begins with, such as the activation of an environment.
    """

    def __init__(self, container: Container, seconds: float, folder: str, activate: str) -> None:
        self._container = container
        self._seconds = seconds
        self._folder = folder
        self._activate = activate

    def run(self, command: str, files: Mapping[str, str] | None = None) -> Outcome:
        """Run a command of bash, or of sh without it, after files are written, by their paths.

        Standard output has both streams. Raises ContainerLost, and ValueError for a NUL.
        """
        mark = secrets.token_hex(16)
        command = f"{self._activate}\n{command}" if self._activate else command
        script = _script(command, self._folder, files or {}, mark)
        done = self._container.execute(script, self._seconds, _OUTPUT_BYTES)
        errors, mark_found, number = done.stderr.partition(mark.encode())
        output, status = (done.stdout + errors)[:_OUTPUT_BYTES], _KILLED_STATUS
        if mark_found and not done.stopped:
            status = int(number)
        else:  # a limit, or the command has killed its shell, or the container is gone
            self._kill_all()
        return Outcome(output, b"", b"", status, done.stopped)

    def close(self) -> None:
        """Delete the container. Idempotent."""
        self._container.close()

    def _kill_all(self) -> None:
        mark = secrets.token_hex(16)
        script = f"{_KILL}; printf {mark}".encode()
        if mark.encode() not in self._container.execute(script, _KILL_SECONDS, 1024).stdout:
            raise ContainerLost("it does not end its processes")


def digest_of(row: str) -> str:
    """Return 16 hexadecimal digits for the name of a row, for that of its container."""
    return hashlib.sha256(row.encode()).hexdigest()[:16]


def run_from_stdin(length: int) -> tuple[str, ...]:
    """Return the command that runs a script of this many bytes from its standard input.

    It reads no more, since not all connections have an end of input.
    """
    return "sh", "-c", f'eval "$(head -c {length})"'


def _script(command: str, folder: str, files: Mapping[str, str], mark: str) -> bytes:
    steps = [f"cd -- {shlex.quote(folder)}"] if folder else []
    for path, text in files.items():
        above = str(PurePosixPath(path).parent)
        steps += [
            f"mkdir -p -- {shlex.quote(above)}",
            f"printf %s {shlex.quote(text)} > {shlex.quote(path)}",
        ]
    shell = '"$(command -v bash || command -v sh)"'
    steps.append(f"{shell} -c {shlex.quote(command)} < /dev/null 2>&1")
    kill = f"{_KILL} 2> /dev/null"
    lines = (kill, " &&\n".join(steps), "s=$?", kill, f'printf "{mark}%s" "$s" >&2')
    script = "\n".join(lines)
    if "\0" in script:
        raise ValueError("got a NUL: a script of sh has none")
    return script.encode()
