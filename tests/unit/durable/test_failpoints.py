"""Failpoints: parsing, arming, and what each action does to a real process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppojob_trainer import failpoints
from ppojob_trainer.errors import ConfigError, InjectedFault
from ppojob_trainer.failpoints import Action, Armed

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


def run_child(armed: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | armed,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
    )


def outcome(text: str, **more: str) -> tuple[int, list[str]]:
    """Exit code of a process so armed, and the hits behind which it went on."""
    child = run_child(environment(text, **more))
    return child.returncode, child.stdout.split()


@pytest.mark.parametrize(
    ("text", "armed"),
    [
        ("a.b=kill", [Armed("a.b", 1, Action.KILL)]),
        ("a.b@3=stop", [Armed("a.b", 3, Action.STOP)]),
        (
            "a.b=kill_group; c.d@2=raise",
            [Armed("a.b", 1, Action.KILL_GROUP), Armed("c.d", 2, Action.RAISE)],
        ),
        ("", []),
    ],
)
def test_parse(text: str, armed: list[Armed]):
    assert list(failpoints.parse(environment(text))) == armed


@pytest.mark.parametrize(
    "text", ["a.b", "a.b=", "a.b=die", "=kill", "a.b@0=kill", "a.b@x=kill", ";"]
)
def test_wrong_arming_says_what_is_allowed(text: str):
    with pytest.raises(ConfigError, match=r"PPOJOB_FAILPOINT: got .*write <name>\[@<n, from 1>\]="):
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


def test_declaring_twice_or_badly_is_a_fault_of_ours():
    for name in ("test.first", "Test.x", "nodot", "a..b"):
        with pytest.raises(AssertionError):
            failpoints.declare(name)


def test_hitting_an_undeclared_point_is_a_fault_of_ours():
    failpoints.arm(environment("test.first@9=raise"))
    with pytest.raises(AssertionError, match="never declared"):
        failpoints.hit("test.undeclared")


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


@pytest.mark.processes
def test_stop_stops_at_the_point_and_goes_on():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=os.environ | environment("child.point@2=stop"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate(timeout=120)
        assert output.split() == ["0", "1", "2", "3"]
    finally:
        child.kill()
        child.wait()


@pytest.mark.processes
def test_environment_is_read_at_the_first_hit_where_no_entry_point_did():
    child = run_child({failpoints.POINT_VARIABLE: "child.point=kill"})
    assert child.returncode == 1
    assert "failpoints are for tests" in child.stderr
