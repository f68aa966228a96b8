"""The table of hostile programs, and a machine with something in it that they could reach.

As a program it tries the table on the interpreter that runs it, as whoever runs it, and prints what
went wrong: that is how a test sees what the sandbox of an ordinary user, or of a pod, holds.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ppojob_trainer.rewards import unit_tests
from ppojob_trainer.sandbox.executor import Sandbox
from ppojob_trainer.sandbox.levels import Isolation, Level, supported_isolation
from ppojob_trainer.sandbox.process import Limits, Outcome, Program
from ppojob_trainer.sandbox.workspace import Workspace, isolation_of_workspaces

SECONDS = 1.5
GRACE_SECONDS = 2.0
LIMITS = Limits(SECONDS, memory_bytes=256 << 20, output_bytes=1 << 20, threads=32)
UNTIL_THE_END = replace(LIMITS, seconds=0.5)
SECRET = "expected-4a1f"
PROGRAM = {"inputs": ["1 2\n"], "outputs": [SECRET]}
FUNCTION = {"fn_name": "solve", "inputs": ["1"], "outputs": [json.dumps([SECRET])]}
FOLLOWED = 8
SUM = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
HONEST = "a, b = map(int, input().split())\nprint(a + b)"

ALLOWED_IN_WORKSPACES = {
    *("fork", "fork by vfork", "run a shell", "become another program", "start another program"),
    # Its data is limited, not its address space; names of accounts may be read; signals reach its
    # own processes.
    *("lift a limit", "read the accounts", "signal everybody"),
    # Such calls do nothing.
    *("change the mode of a file", "change the owner of a file", "change the time of a file"),
}

_TRYING = """
import ctypes, os, socket
def call(number, *arguments):
    result = ctypes.CDLL(None).syscall(number, *arguments)
    if result < 0:
        raise OSError(number)
    return result
def fail():
    raise OSError("failed")
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False
"""


@dataclass(frozen=True, slots=True)
class Hostile:
    """A program of the table.

    Attributes:
        kind: ``escape``, ``network``, ``hack``, ``hack function``, ``bomb``, or ``bomb without
            end``, which goes on until its time is over.
        name: what it tries.
        code: how. An escape, or a way to the network, comes to its end only where it succeeds.
        is_followed: whether an honest program is tried after it, which must be scored as it should.
    """

    kind: str
    name: str
    code: str
    is_followed: bool = True

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.name}"

    @property
    def truth(self) -> dict[str, object]:
        """The tests that it is to pass by all means."""
        return FUNCTION if self.kind == "hack function" else PROGRAM

    def response(self, place: dict[str, object]) -> str:
        code = self.code
        for name, value in place.items():
            code = code.replace(f"@{name}@", str(value))
        if self.kind in ("escape", "network"):
            code = f'{_TRYING}{code}\nprint("ESCAPED")'
        return f"Here it is:\n```python\n{code}\n```"


def read_table() -> list[Hostile]:
    """All hostile programs. Every bomb is followed by an honest one, and every eighth of others
    and the last."""
    text = (Path(__file__).parent / "hostile_programs.txt").read_text(encoding="utf-8")
    blocks = text.replace("@NEST@", "(" * 5_000 + ")" * 5_000).split("=== ")[1:]
    found = []
    for block in blocks:
        head, _, code = block.partition("\n")
        kind, _, name = head.partition(": ")
        is_due = len(found) % FOLLOWED == FOLLOWED - 1 or block is blocks[-1]
        is_followed = kind.startswith("bomb") or is_due
        found.append(Hostile(kind, name, code, is_followed))
    return found


class Watched(Sandbox):
    """A sandbox that keeps what came of its last program.

    Attributes:
        patient: the same for honest programs, however busy this machine is.
    """

    def __init__(self, limits: Limits, *, least: Level, isolation: Isolation) -> None:
        super().__init__(limits, least=least, isolation=isolation)
        self.patient = Sandbox(Limits(seconds=60.0), least=least, isolation=isolation)
        self.last: Outcome | None = None

    def run(self, program: Program) -> Outcome:
        self.last = super().run(program)
        return self.last


@dataclass
class Surroundings:
    """What a program could reach: a file, a folder, a port, a socket, and a process, this one."""

    place: dict[str, object]
    visits: list[object] = field(default_factory=list)

    @property
    def state(self) -> tuple[object, ...]:
        """What must be the same before and after."""
        file, folder = Path(str(self.place["FILE"])), Path(str(self.place["FOLDER"]))
        found = file.stat()
        marks = os.listxattr(file)
        names = sorted(os.listdir(folder)) + sorted(os.listdir(file.parent))
        about = (found.st_mode, found.st_uid, found.st_mtime_ns, found.st_nlink)
        mine = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0))
        return (file.read_text(encoding="utf-8"), about, marks, names, mine, list(self.visits))


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    with tempfile.TemporaryDirectory(prefix="reachable-") as top, socket.socket() as port:
        folder, file, path = Path(top) / "folder", Path(top) / "file", Path(top) / "socket"
        folder.mkdir()
        file.write_text(SECRET, encoding="utf-8")
        for made in (Path(top), folder, file):
            made.chmod(0o777)
        port.bind(("127.0.0.1", 0))
        port.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local:
            local.bind(str(path))
            path.chmod(0o777)
            names = {"FILE": file, "FOLDER": folder, "SOCKET": path, "PID": os.getpid()}
            found = Surroundings({**names, "PORT": port.getsockname()[1]})
            threading.Thread(target=_note, args=(port, found.visits), daemon=True).start()
            yield found


def _note(port: socket.socket, visits: list[object]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, address = port.accept()
            connection.close()
            visits.append(address)


def problems(hostile: Hostile, sandbox: Watched, around: Surroundings) -> list[str]:
    """What a hostile program achieved; nothing, where all is well."""
    sandbox.limits = UNTIL_THE_END if hostile.kind == "bomb without end" else LIMITS
    before, start = around.state, time.monotonic()
    found = unit_tests.code(hostile.response(around.place), json.dumps(hostile.truth), sandbox)
    seconds = time.monotonic() - start
    told = [] if found["score"] == found["acc"] == 0.0 else [f"it was scored {found}"]
    last = sandbox.last
    if last and b"ESCAPED" in last.stdout:
        told.append("it got out")
    if last and SECRET.encode() in last.stdout + last.answer + last.errors:
        told.append("it knows what is expected")
    if around.state != before:
        told.append(f"it changed {before} to {around.state}")
    if seconds > sandbox.limits.seconds + GRACE_SECONDS:
        told.append(f"it took {seconds:.1f} s")
    if hostile.is_followed:
        honest = unit_tests.code(HONEST, json.dumps(SUM), sandbox.patient)
        if honest["score"] != 1.0:
            told.append(f"the honest program after it was scored {honest}")
    return told


def achieved_in_a_workspace(sandbox: Sandbox, around: Surroundings) -> dict[str, str]:
    """What escapes, ways to the network and bombs achieved as files that a command runs."""
    found = {}
    isolation = isolation_of_workspaces(sandbox)
    workspace = Workspace(isolation, LIMITS, "hostile", most_bytes=8 << 20)
    honest = Workspace(isolation, Limits(seconds=60.0), "honest", most_bytes=8 << 20)
    for hostile in read_table():
        if hostile.kind not in ("escape", "network", "bomb"):
            continue
        _, _, code = hostile.response(around.place).partition("```python\n")
        before, start = around.state, time.monotonic()
        made = workspace.run("python3 program.py", {"program.py": code.rpartition("\n```")[0]})
        if b"ESCAPED" in made.stdout and hostile.name not in ALLOWED_IN_WORKSPACES:
            found[hostile.id] = "it got out"
        if around.state != before:
            found[hostile.id] = f"it changed {before} to {around.state}"
        if (seconds := time.monotonic() - start) > LIMITS.seconds + GRACE_SECONDS:
            found[hostile.id] = f"it took {seconds:.1f} s"
        if hostile.kind == "bomb" and honest.run("echo well").stdout != b"well\n":
            found[hostile.id] = "the command after it failed"
    for opened in (workspace, honest):
        opened.close()
    return found


def open_sandbox(level: Level | None) -> Watched:
    """With the isolation of a level alone, which must hold here; or of the highest that is here."""
    isolation = supported_isolation()
    if level is None:
        return Watched(LIMITS, least=Level.RESTRICTED, isolation=isolation)
    if level == Level.RESTRICTED:
        isolation = isolation.without_namespaces("left out by the test")
    return Watched(LIMITS, least=level, isolation=isolation)


def main(level: str = "") -> int:
    """Try all; print what went wrong, the number of programs tried and the level that holds."""
    sandbox = open_sandbox(Level[level] if level else None)
    table = read_table()
    with surroundings() as around:
        found = {one.id: told for one in table if (told := problems(one, sandbox, around))}
        in_workspaces = achieved_in_a_workspace(sandbox, around)
    found |= {f"workspace: {name}": [told] for name, told in in_workspaces.items()}
    told = {"tried": len(table), "user": os.getuid(), "level": sandbox.description}
    json.dump({**told, "problems": found}, sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
