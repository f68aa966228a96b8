import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppojob_trainer import failpoints
from ppojob_trainer.errors import ConfigError, InjectedFault

FIRST = failpoints.declare("test.first")
SECOND = failpoints.declare("test.second")

CHILD = """
from ppojob_trainer import failpoints
point = failpoints.declare("child.point")
for number in range(4):
    failpoints.hit(point)
    print(number, flush=True)
"""


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.arm({})


def environment(text: str, **more: str) -> dict[str, str]:
    return {failpoints.POINT_VARIABLE: text, failpoints.ENABLE_VARIABLE: "1", **more}


def outcome(text: str, **more: str) -> tuple[int, list[str]]:
    """Exit code of a process so armed, and the hits behind which it went on."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | environment(text, **more),
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return child.returncode, child.stdout.split()


def test_wrong_arming_says_what_is_allowed():
    for text in ("a.b", "a.b=", "a.b=die", "=kill", "a.b@0=kill", "a.b@x=kill", ";"):
        with pytest.raises(ConfigError, match=r"got .*write <name>\[@<n, from 1>\]="):
            failpoints.parse(environment(text))


@pytest.mark.parametrize("enabled", [{}, {failpoints.ENABLE_VARIABLE: "0"}])
def test_armed_without_enabling_is_refused(enabled: dict[str, str]):
    with pytest.raises(ConfigError, match="PPOJOB_ENABLE_FAILPOINTS=1"):
        failpoints.arm({failpoints.POINT_VARIABLE: "test.first=kill"} | enabled)


def test_raises_at_the_armed_hits_only():
    failpoints.arm(environment("test.first@2=raise;test.first@3=raise"))
    failpoints.hit(FIRST)
    failpoints.hit(SECOND)
    for _ in range(2):
        with pytest.raises(InjectedFault, match=r"test\.first@[23]=raise"):
            failpoints.hit(FIRST)
    failpoints.hit(FIRST)


@pytest.mark.parametrize("action", ["kill", "kill_group"])
@pytest.mark.processes
def test_kill_takes_the_process_at_the_nth_hit(action: str):
    assert outcome(f"child.point@3={action}") == (-signal.SIGKILL, ["0", "1"])


@pytest.mark.processes
def test_once_fires_once_over_restarts(tmp_path: Path):
    once = {failpoints.ONCE_VARIABLE: str(tmp_path)}
    armed = "child.point@2=kill;child.point@3=kill"
    assert outcome(armed, **once) == (-signal.SIGKILL, ["0"])
    assert outcome(armed, **once) == (-signal.SIGKILL, ["0", "1"])
    assert outcome(armed, **once) == (0, ["0", "1", "2", "3"])
