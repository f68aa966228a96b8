"""Workspaces: commands that change their files, and nothing else."""

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hostile_table
import pytest
from patience import eventually
from reward_functions import descendants
from tiers import first_in_test

from ppojob_trainer.sandbox import workspace as workspace_module
from ppojob_trainer.sandbox.executor import Sandbox, SandboxRefused
from ppojob_trainer.sandbox.levels import Isolation, Level, supported_isolation
from ppojob_trainer.sandbox.process import Limits, Outcome
from ppojob_trainer.sandbox.workspace import Workspace, isolation_of_workspaces

pytestmark = pytest.mark.processes

LEVELS = [Level.RESTRICTED, Level.NAMESPACES]
LIMITS = Limits(seconds=60.0, memory_bytes=256 << 20)
MOST_BYTES = 8 << 20
LONG = ("b" * 200, "b" * 200)
SHARED_MEMORY = (
    "python3 -c 'import mmap; m = mmap.mmap(-1, 1 << 29)\nwhile True: m.write(bytes(1 << 20))'"
)


@pytest.fixture(scope="module", params=LEVELS, ids=lambda one: one.name)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    isolation = supported_isolation()
    if request.param == Level.RESTRICTED:
        isolation = isolation.without_namespaces("by the test")
    try:
        return Sandbox(LIMITS, least=request.param, isolation=isolation)
    except SandboxRefused as refused:
        pytest.skip(str(refused))


@pytest.fixture(scope="module")
def isolation(sandbox: Sandbox) -> Isolation:
    found = isolation_of_workspaces(sandbox)
    assert found.level == sandbox.level
    return found


@pytest.fixture
def workspace(isolation: Isolation) -> Iterator[Workspace]:
    opened = Workspace(isolation, LIMITS, "step 1/train/row 2", most_bytes=MOST_BYTES)
    yield opened
    opened.close()


def zombies() -> set[str]:
    """Return the ended children of this process that nobody has waited for."""
    states = ["ps", "--ppid", str(os.getpid()), "-o", "pid=,state="]
    listed = subprocess.run(states, capture_output=True, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if line.endswith("Z")}


def output(outcome: Outcome) -> str:
    assert outcome.is_well, outcome
    return outcome.stdout.decode()


def test_files_stay_and_processes_do_not(workspace: Workspace) -> None:
    made = workspace.run("echo one > a; (sleep 60; echo late >> a) & cat b/c", {"b/c": "täxt"})
    assert output(made) == "täxt"
    eventually(lambda: not descendants())
    assert output(workspace.run("cat a; ls")) == "one\na\nb\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo out; echo error >&2; exit 3", "out\nerror\n"),
        ("timeout 0.1 sleep 9; echo $?", "124\n"),
        ("printf 'b\\na\\n' | sort | tr a-z A-Z", "A\nB\n"),
        ("sed -i s/x/y/ f && cat f", "y"),
        (
            'mktemp > /dev/null && python3 -c \'import subprocess as s; s.run(["echo", "6"])\'',
            "6\n",
        ),
        ("for i in $(seq 60); do sleep 0.5 & done; wait && echo ended", "ended\n"),
        ("cp f g && mv g d/h && ln -s d/h i && cat i && rm -r d", "x"),
    ],
)
def test_common_commands_work(workspace: Workspace, command: str, said: str) -> None:
    made = workspace.run(command, {"f": "x", "d/e": ""})
    assert made.stdout.decode() == said
    assert made.status == (3 if "exit 3" in command else 0)


@pytest.mark.parametrize(
    ("command", "stopped"),
    [
        ("yes", "output"),
        ("for i in $(seq 400); do sleep 60 & done; wait", "threads"),
        (SHARED_MEMORY, "memory"),
        ("for i in 1 2 3 4 5; do head -c 4000000 /dev/zero > f$i; sleep 0.4; done", "files"),
    ],
)
def test_limits(workspace: Workspace, command: str, stopped: str) -> None:
    assert workspace.run(command).stopped == stopped
    eventually(lambda: not descendants())
    assert output(workspace.run("rm -f f*; echo well")) == "well\n"


def test_no_zombie_is_left(workspace: Workspace) -> None:
    """Orphans of a command have nobody else in a pod whose first process does not reap."""
    before = zombies()
    workspace.run("for i in 1 2 3 4 5; do (sleep 60 &); done; true")
    assert zombies() <= before


def test_the_limit_of_time(isolation: Isolation) -> None:
    workspace = Workspace(isolation, replace(LIMITS, seconds=0.5), "slow", most_bytes=MOST_BYTES)
    assert workspace.run("sleep 60").stopped == "time"
    eventually(lambda: not descendants())
    workspace.close()


def test_files_do_not_grow_command_by_command(workspace: Workspace) -> None:
    """When they are too large they may be deleted, and are if they grow."""
    quick = "python3 -c 'import sys; open(sys.argv[1], \"wb\").write(bytes(5_000_000))' "
    assert workspace.run(f"{quick} a").is_well
    assert workspace.run(f"{quick} b").stopped == "files"
    assert not workspace.run(f"{quick} c").is_well
    assert output(workspace.run("ls; rm b; echo x > d; cat d")).startswith("a\nb\nc\n")
    assert workspace.run("head -c 5000000 /dev/zero > b").stopped == "files"
    many = "i=0; while :; do mkdir $i.{0..400}; i=$((i + 1)); done"
    assert workspace.run(many).stopped == "files"
    assert output(workspace.run("ls; echo x > d; cat d")) == "x\n"


def test_deleted_files_count_while_they_are_open(workspace: Workspace) -> None:
    code = "import os, time\nf = open('a', 'wb')\nos.unlink('a')\nf.write(bytes(7 << 20))\n"
    code += "g = open('b', 'wb')\nos.unlink('b')\ng.write(bytes(7 << 20))\ntime.sleep(60)"
    assert workspace.run("python3 a.py", {"a.py": code}).stopped == "files"


def test_sockets_count(workspace: Workspace) -> None:
    code = "import socket, time\nheld = [socket.socketpair() for _ in range(100)]\ntime.sleep(60)"
    command = "for i in 1 2 3 4 5 6 7 8; do python3 a.py & done; wait"
    assert workspace.run(command, {"a.py": code}).stopped == "descriptors"


def test_folders_deeper_than_a_path(isolation: Isolation) -> None:
    name = "deep"
    code = "import os\nfor _ in range(%d): os.mkdir('%s'); os.chdir('%s')"
    deep, nested = (f'python3 -c "{code % each}"' for each in ((60, *LONG), (1200, "a", "a")))
    for _ in range(2):
        workspace = Workspace(isolation, LIMITS, name, most_bytes=MOST_BYTES)
        assert workspace.run(deep).is_well
        assert workspace.run(nested).is_well
        assert output(workspace.run("echo well")) == "well\n"
        folder = workspace._folder
        workspace.close()
        assert not folder.exists()


def test_files_outside_are_not_truncated_where_landlock_does_not_know_it(
    isolation: Isolation, tmp_path: Path
) -> None:
    """Linux 5.13 to 6.1."""
    if isolation.level != Level.RESTRICTED:
        pytest.skip("other files are not there")
    outside = tmp_path / "outside"
    outside.write_text("mine")
    old = replace(isolation, landlock=1)
    workspace = Workspace(old, LIMITS, "old", most_bytes=MOST_BYTES)
    code = f"""
import os
for attempt in (
    lambda: os.truncate({str(outside)!r}, 0),
    lambda: os.open({str(outside)!r}, os.O_RDONLY | os.O_TRUNC),
    lambda: os.open({str(outside)!r}, 3 | os.O_TRUNC),
    lambda: os.open({str(outside)!r}, os.O_WRONLY | os.O_TRUNC),
):
    try:
        attempt()
    except OSError:
        print("refused")
"""
    assert output(workspace.run("python3 a.py", {"a.py": code})) == "refused\n" * 4
    assert outside.read_text() == "mine"
    assert output(workspace.run("echo x > a; echo y > a; cat a")) == "y\n"
    workspace.close()


def test_folders_of_killed_processes_are_deleted(isolation: Isolation, tmp_path: Path) -> None:
    left = Workspace(isolation, LIMITS, "left", most_bytes=MOST_BYTES)
    root = left._folder.parent
    left.close()
    (root / "dead" / "home").mkdir(parents=True)
    (root / "dead.lock").touch()
    workspace_module._root.cache_clear()
    Workspace(isolation, LIMITS, "new", most_bytes=MOST_BYTES).close()
    assert not (root / "dead").exists()
    assert not (root / "dead.lock").exists()


def test_files_that_are_written_follow_no_link_out(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("mine")
    workspace.run(f"ln -s {tmp_path} tests; ln -s {tmp_path}/own own")
    assert not workspace.run("true", {"tests/own": "theirs"}).is_well
    assert output(workspace.run("cat own", {"own": "new"})) == "new"
    assert (tmp_path / "own").read_text() == "mine"
    workspace.close()
    assert (tmp_path / "own").read_text() == "mine"


@pytest.mark.parametrize("sandbox", first_in_test(LEVELS), indirect=True)
def test_a_hostile_program_gets_nothing(sandbox: Sandbox) -> None:
    """The restricted level is that of pods."""
    with hostile_table.surroundings() as around:
        assert hostile_table.achieved_in_a_workspace(sandbox, around) == {}


def test_its_folders_cannot_be_replaced_by_links(workspace: Workspace, tmp_path: Path) -> None:
    """The next command would have what they lead to mounted."""
    (tmp_path / "own").write_text("mine")
    for folder in ("$HOME", "$TMPDIR"):
        workspace.run(f"cd /; rm -rf {folder}; mv {folder} x; ln -sfn {tmp_path} {folder}")
        found = workspace.run(f"echo x > {folder}/own; cat {folder}/own; pwd")
        assert found.stdout.decode().startswith("x\n")
    assert (tmp_path / "own").read_text() == "mine"


def test_two_of_one_name_are_apart(isolation: Isolation) -> None:
    opened = [Workspace(isolation, LIMITS, "row", most_bytes=MOST_BYTES) for _ in range(2)]
    for number, one in enumerate(opened):
        one.run(f"echo {number} > a; mkdir closed; umask 777; mkdir closed/b; chmod 0 closed")
    assert [output(one.run("cat a")) for one in opened] == ["0\n", "1\n"]
    folders = [one._folder for one in opened]
    for one in opened:
        one.close()
    assert not any(folder.exists() for folder in folders)
    again = Workspace(isolation, LIMITS, "row", most_bytes=MOST_BYTES)
    assert again._folder == folders[0]
    again.close()


def test_workspaces_at_the_same_time(isolation: Isolation) -> None:
    def run(number: int) -> None:
        one = Workspace(isolation, LIMITS, f"row {number}", most_bytes=MOST_BYTES)
        found[number] = output(one.run(f"echo {number} > a; sleep 0.2; cat a"))
        one.close()

    found: dict[int, str] = {}
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}\n" for number in range(4)}


def test_isolation_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seccomp that allows all."""
    isolation = supported_isolation().without_namespaces("by the test")
    sandbox = Sandbox(LIMITS, isolation=isolation)
    allow_all = bytes.fromhex("060000000000ff7f")
    monkeypatch.setattr("ppojob_trainer.sandbox.levels.filter_program", lambda *_: allow_all)
    with pytest.raises(SandboxRefused, match="it reaches the network"):
        isolation_of_workspaces(sandbox)
