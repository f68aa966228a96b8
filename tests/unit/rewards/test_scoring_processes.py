import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import eventually
from reward_functions import Source, descendants, item, running

from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rewards.process import ScoringPool

pytestmark = pytest.mark.processes


def test_a_process_that_somebody_kills_costs_nothing(source: Source, tmp_path: Path) -> None:
    """The signal comes from outside and in the middle of a call; the call itself is audio."""
    marker = tmp_path / "pid"
    spec = source(
        f"path = {str(marker)!r}\n"
        "if os.path.exists(path): return 3\n"
        "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)\n"
        "time.sleep(1000)",
        seconds=60,
    )
    with ScoringPool([spec]) as pool:
        killer = threading.Thread(target=kill_when_told, args=(marker,))
        killer.start()
        results = pool.score([item("x")])
        killer.join()
    assert [result.score for result in results] == [3.0]


KILLED_WHILE_IT_LOADS = """
import os, signal
with open({path!r}, "a") as starts:
    starts.write("x")
if os.path.getsize({path!r}) in {killed}:
    os.kill(os.getpid(), signal.SIGKILL)
def score(solution_str, **more):
    if solution_str == "bad" and os.path.getsize({path!r}) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 3
"""


@pytest.mark.parametrize("killed", [{1}, {2}], ids=["the first", "one that takes its place"])
def test_a_process_that_somebody_kills_while_it_loads_costs_nothing(killed, source, tmp_path):
    starts = tmp_path / "starts"
    code = KILLED_WHILE_IT_LOADS.format(path=str(starts), killed=killed)
    with ScoringPool([source(code, whole=True, seconds=60)]) as pool:
        results = pool.score([item("good"), item("bad"), item("good")])
    assert [result.score for result in results] == [3.0] * 3
    assert len(starts.read_text()) == max(killed) + 1


def test_processes_killed_again_and_again_while_they_load_are_no_wrong_input(source) -> None:
    """Memory is short, say: as a wrong input it would be the end of the job for good."""
    spec = source("import os; os.kill(os.getpid(), 9)", whole=True)
    with pytest.raises(RewardFailed, match="was killed by signal 9"):
        ScoringPool([spec])
    assert not descendants()


def kill_when_told(marker: Path) -> None:
    eventually(marker.exists)
    os.kill(int(marker.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("escape", ["fork", "session", "double fork", "popen"])
def test_what_a_call_started_dies_with_it(escape: str, source: Source, tmp_path: Path) -> None:
    marker = f"{time.time_ns() % 10**9}.125"
    sleep = f"os.execvp('sleep', ['sleep', '{marker}'])"
    code = {
        "fork": f"os.fork() or {sleep}",
        "session": f"os.fork() or (os.setsid(), {sleep})",
        "double fork": f"os.fork() or (os.setsid(), os.fork() and os._exit(0), {sleep})",
        "popen": f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True)",
    }[escape]
    spec = source(f"{code}\ntime.sleep(0.3)\nif solution_str == 'x': return 1\ntime.sleep(1000)")
    with ScoringPool([spec]) as pool:
        pool.score([item("x")])
        eventually(lambda: running(f"sleep {marker}"))
        with pytest.raises(RewardFailed, match="RewardTimeout"):
            pool.score([item("y")])
        assert not running(f"sleep {marker}")
    assert not running(str(tmp_path))


def test_what_takes_long_to_load_is_not_loaded_for_a_call(source: Source) -> None:
    """Each job starts some of these processes, and each loss of one starts another."""
    spec = source("return len({'pydantic', 'asyncio', 'numpy', 'torch'} & sys.modules.keys())")
    with ScoringPool([spec]) as pool:
        assert pool.score([item("x")])[0].score == 0.0


def test_a_fork_that_comes_back_answers_nothing(source: Source) -> None:
    spec = source("return 1 if os.fork() else 2")
    with ScoringPool([spec]) as pool:
        assert [pool.score([item("x")])[0].score for _ in range(5)] == [1.0] * 5


def test_descriptors_of_this_process_are_not_inherited(source: Source, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        code = "return {'score': 1, 'files': str([os.readlink(f'/proc/self/fd/{n}') for n in "
        code += "os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])}"
        with ScoringPool([source(code)]) as pool:
            assert "secret" not in str(pool.score([item("x")])[0].extras["files"])


def test_close_ends_what_is_at_work(source: Source) -> None:
    pool = ScoringPool([source("time.sleep(1000)", seconds=900)], processes=2)
    failures: list[BaseException] = []

    def score() -> None:
        try:
            pool.score([item("x")])
        except RewardFailed as error:
            failures.append(error)

    thread = threading.Thread(target=score)
    thread.start()
    time.sleep(0.5)
    started = time.monotonic()
    pool.close()
    thread.join()
    assert time.monotonic() - started < 60  # the call itself would take 900
    assert len(failures) == 1
    assert not descendants()


def test_nothing_is_left_when_this_process_is_killed(source: Source) -> None:
    marker = f"{time.time_ns() % 10**9}.25"
    spec = source(
        f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True)\nwhile True: pass",
        seconds=900,
    )
    program = (
        "from ppojob_api.v1alpha1.rollout import RewardSpec\n"
        "from ppojob_trainer.rewards.process import ScoringPool\n"
        "from ppojob_trainer.rewards.records import RewardItem\n"
        f"spec = RewardSpec.model_validate_json({spec.model_dump_json()!r})\n"
        "pool = ScoringPool([spec])\n"
        "pool.score([RewardItem(0, 'x', 'x', None)])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        eventually(lambda: running(f"sleep {marker}"))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    eventually(lambda: not running(f"sleep {marker}"))
    assert not running(f"rewards.child {parent.pid}")
