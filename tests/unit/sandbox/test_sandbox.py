import errno
import os
import shutil
import subprocess
import sys
import time

import pytest
from patience import eventually
from pydantic import ValidationError
from reward_functions import descendants

from ppojob_api.v1alpha1.rollout import RewardSpec, SandboxSpec
from ppojob_trainer.children.pool import DEFAULT_MEMORY_BYTES
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.sandbox.executor import Sandbox, SandboxRefused
from ppojob_trainer.sandbox.levels import Isolation, Level, supported_isolation
from ppojob_trainer.sandbox.process import Limits, Outcome, Program

pytestmark = pytest.mark.processes


@pytest.fixture(
    scope="module", params=[Level.RESTRICTED, Level.NAMESPACES], ids=lambda one: one.name
)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    isolation = supported_isolation()
    if request.param == Level.RESTRICTED:
        isolation = isolation.without_namespaces("by the test")
    try:
        return Sandbox(Limits(seconds=5.0), least=request.param, isolation=isolation)
    except SandboxRefused as refused:
        pytest.skip(str(refused))


def printed(outcome: Outcome) -> str:
    assert outcome.is_well, outcome
    return outcome.stdout.decode()


def test_what_goes_in_and_out(sandbox: Sandbox) -> None:
    text = "line of t\u00e4xt\n" * 200_000
    program = Program("import sys\nsys.stdout.write(sys.stdin.read())", stdin=text)
    assert printed(sandbox.run(program)) == text
    program = Program("def f(a): return {'b': (a, None)}", function="f", arguments="[3]")
    assert sandbox.run(program).answer == b'{"b": [3, null]}'


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nfound = []\nt = threading.Thread(target=found.append, args=(6,))\n"
        "t.start()\nt.join()\nprint(*found)",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    print(6)\n"
        "asyncio.run(main())",
        "import numpy\nprint(int(numpy.arange(4).sum()))",
        "import sys\nsys.setrecursionlimit(10**6)\n"
        "def f(n): return n and 1 + f(n - 1)\nprint(f(6 * 10**4) // 10**4)",
        "import signal, random, tempfile, decimal, datetime, zoneinfo, hashlib, os\nprint(6)",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: print(sum(pool.map(int, '123')))",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    b: int\nprint(A(6).b)",
        "print(6)\nexit()",
    ],
)
def test_honest_programs_work(code: str, sandbox: Sandbox) -> None:
    assert printed(sandbox.run(Program(code))) == "6\n"


def test_two_runs_say_the_same(sandbox: Sandbox) -> None:
    program = Program("print({'a', 'b', 'c', 'd'}, hash('x'))")
    assert printed(sandbox.run(program)) == printed(sandbox.run(program))


@pytest.mark.parametrize(
    ("code", "stopped"),
    [
        ("while True: pass", "time"),
        ("import time; time.sleep(100)", "time"),
        ("while True: print('x' * 1000)", "output"),
        (
            "import threading, time\n"
            "for _ in range(60): threading.Thread(target=time.sleep, args=(100,)).start()",
            "threads",
        ),
    ],
)
def test_limits_are_told_apart_and_nothing_is_left(code: str, stopped: str) -> None:
    sandbox = Sandbox(Limits(seconds=1.0, output_bytes=1 << 16, threads=8))
    start = time.monotonic()
    outcome = sandbox.run(Program(code))
    assert outcome.stopped == stopped
    assert not outcome.is_well
    assert time.monotonic() - start < 20.0
    eventually(lambda: not descendants())


def test_memory_is_limited() -> None:
    sandbox = Sandbox(Limits(memory_bytes=128 << 20))
    assert not sandbox.run(Program("x = bytearray(256 << 20)")).is_well
    assert sandbox.run(Program("x = bytearray(32 << 20)")).is_well


def test_no_more_memory_is_promised_than_the_process_around_it_has() -> None:
    most = DEFAULT_MEMORY_BYTES >> 20
    assert SandboxSpec(memory_mib=most).memory_mib == most
    with pytest.raises(ValidationError):
        SandboxSpec(memory_mib=most + 1)


def test_code_that_is_no_python_is_told(sandbox: Sandbox) -> None:
    for code in ("1 +", "\0", "x = " + "(" * 10_000, "\ud800"):
        outcome = sandbox.run(Program(code))
        assert not outcome.is_python
        assert not outcome.is_well
    assert sandbox.run(Program("raise ValueError")).is_python


def test_without_walls_nothing_is_run_unless_told() -> None:
    isolation = Isolation(0, b"", (), supported_isolation().readable, "the kernel has no Landlock")
    with pytest.raises(SandboxRefused) as refused:
        Sandbox(isolation=isolation)
    assert str(refused.value).startswith("sandbox level none (the kernel has no Landlock): ")
    sandbox = Sandbox(least=Level.NONE, isolation=isolation)
    assert sandbox.level == Level.NONE
    assert printed(sandbox.run(Program("print(1)"))) == "1\n"


def test_a_wall_that_does_not_hold_is_none() -> None:
    """Seccomp with a filter that allows all, and Landlock with all to be read."""
    allow_all = bytes.fromhex("060000000000ff7f")
    isolation = Isolation(supported_isolation().landlock, allow_all, (), ("/",))
    with pytest.raises(SandboxRefused) as refused:
        Sandbox(isolation=isolation)
    assert "it reaches the network, processes, files" in str(refused.value)


def test_a_machine_without_user_namespaces() -> None:
    """Like a pod: bubblewrap is there, and the kernel makes no namespaces for it."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None or Sandbox().level < Level.NAMESPACES:
        pytest.skip("no namespaces here, so none to do without")
    code = (
        "from ppojob_trainer.sandbox.executor import Sandbox\n"
        "from ppojob_trainer.sandbox.process import Program\n"
        "box = Sandbox()\nprint(box.level.name, box.run(Program('print(6)')).stdout)"
    )
    outer = [bubblewrap, "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    assert said_by(*outer, sys.executable, "-c", code) == "RESTRICTED b'6\\n'\n"


REFUSING = """
import struct, sys
from ppojob_trainer.sandbox import inside
from ppojob_trainer.sandbox.levels import Level, supported_isolation
from ppojob_trainer.sandbox.executor import Sandbox
from ppojob_trainer.sandbox.process import Program
call, error = map(int, sys.argv[1:])
inside._control(38, 1)
load, refuse = (0x20, 0, 0, 0), (6, 0, 0, 0x50000 | error)
rules = [load, (0x15, 0, 1, call), refuse, (6, 0, 0, 0x7FFF0000)]
inside._filter_system_calls(b"".join(struct.pack("HBBI", *rule) for rule in rules))
"""
"""A process in which one system call gives an error, as under a container runtime's profile."""


def said_by(*command: str) -> str:
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": "/usr/bin"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    return done.stdout + done.stderr


def under_a_profile(call: int, error: int, code: str) -> str:
    return said_by(sys.executable, "-c", REFUSING + code, str(call), str(error))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (errno.EPERM, "the container runtime's seccomp profile refuses landlock_* calls\n"),
        (errno.ENOSYS, "the kernel has no Landlock\n"),
        (errno.EOPNOTSUPP, "Landlock is turned off in the kernel\n"),
    ],
)
def test_why_there_is_no_landlock(error: int, why: str) -> None:
    code = "isolation = supported_isolation()\nprint(isolation.level.name, isolation.limitation)"
    assert under_a_profile(444, error, code) == f"NONE {why}"


def test_a_process_that_cannot_start_now_is_started_soon() -> None:
    code = """
import os, resource, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
threading.Timer(0.2, lambda: [os.close(one) for one in taken]).start()
print(box.run(Program("print(6)")).stdout)
"""
    # No call has the number 9999.
    said = under_a_profile(9999, 1, "box = Sandbox(least=Level.NONE)" + code)
    assert said == "b'6\\n'\n"


def test_a_runtime_without_pidfd_open() -> None:
    code = "print(Sandbox(least=Level.NONE).run(Program('print(6)')).stdout)"
    assert under_a_profile(434, errno.EPERM, code) == "b'6\\n'\n"


def test_a_scorer_that_is_asked_for_by_name_needs_its_level_at_the_start(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")  # no bubblewrap
    sandbox = SandboxSpec(level="namespaces")
    with pytest.raises(ConfigError, match=r"spec\.rewards\[0\]\.function: got code with sandbox"):
        ScoringPool([RewardSpec(function="code")], sandbox=sandbox)
    with ScoringPool([], sandbox=sandbox):
        pass  # who knows whether there is any code
