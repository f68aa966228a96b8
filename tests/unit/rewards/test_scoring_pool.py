import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.errors import ConfigError, NonFiniteReward, RewardFailed
from ppojob_trainer.rewards.process import OnFailure, ScoringPool
from ppojob_trainer.rewards.records import RewardItem, RewardResult

Source = Callable[[str], RewardSpec]
HEAD = "import os, signal, subprocess, sys, time\n"
SIGNATURE = "def score(data_source, solution_str, ground_truth, extra_info, **arguments):\n"


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., RewardSpec]:
    def make(code: str, *, seconds: float = 2.0, whole: bool = False, **more: object) -> RewardSpec:
        body = textwrap.dedent(code)
        path = tmp_path / f"reward{len(list(tmp_path.iterdir()))}.py"
        path.write_text(body if whole else HEAD + SIGNATURE + textwrap.indent(body, "    "))
        settings = {"function": "score", "source": {"path": str(path)}, **more}
        return RewardSpec.model_validate(settings | {"timeLimitSeconds": seconds})

    return make


def item(response: str, row: int = 0, **more: object) -> RewardItem:
    return RewardItem(row, "mine", response, "truth", more)  # type: ignore[arg-type]


def descendants() -> list[str]:
    """Command lines of all processes below this one."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    parents = {}
    for line in listed.stdout.splitlines():
        pid, parent, command = line.split(None, 2)
        parents[int(pid)] = (int(parent), command)
    found, wanted = [], {os.getpid()}
    for pid in sorted(parents):
        if parents[pid][0] in wanted:
            wanted.add(pid)
            found.append(parents[pid][1])
    # Other tests of this process keep servers of their own.
    return [command for command in found if "ppojob_trainer" in command]


def running(text: str) -> bool:
    listed = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True)
    return any(text in line for line in listed.stdout.splitlines())


def test_rows_are_routed_by_their_data_source() -> None:
    items = [
        RewardItem(0, "openai/gsm8k", "#### 72", "72"),
        RewardItem(1, "ppojob/addition", "#### 3", "26"),
        RewardItem(2, "countdown", "<answer>4 * 6</answer>", {"target": 24, "numbers": [4, 6]}),
        RewardItem(3, "multiply", "none", "56"),
    ]
    with ScoringPool([], processes=2) as pool:
        results = pool.score(items)
    assert [result.score for result in results] == [1.0, 0.1, 1.0, 0.0]
    assert results[0] == RewardResult(1.0, {"acc": 1.0, "pred": "72"})
    assert results[1].extras["acc"] == 0.0


def test_an_unknown_data_source() -> None:
    with ScoringPool([]) as pool, pytest.raises(RewardFailed, match="no scorer knows it; one for"):
        pool.score([RewardItem(4, "lighteval/MATH", "1", "1")])


def test_a_function_of_ones_own(source: Source) -> None:
    spec = source(
        "return {'score': len(solution_str), 'seen': data_source + ground_truth + "
        "str(extra_info) + str(arguments)}",
        arguments={"factor": 2},
    )
    with ScoringPool([spec]) as pool:
        (result,) = pool.score([item("abc", index=7)])
    assert result == RewardResult(3.0, {"seen": "minetruth{'index': 7}{'factor': 2}", "acc": 3.0})


def test_answers_are_in_the_order_of_the_rows(source: Source) -> None:
    spec = source("time.sleep(0.05 if int(solution_str) % 3 else 0); return int(solution_str)")
    with ScoringPool([spec], processes=3) as pool:
        results = pool.score([item(str(number), number) for number in range(20)])
    assert [result.score for result in results] == list(range(20))


def test_several_functions_are_summed_by_weight(source: Source) -> None:
    length = source("return {'score': len(solution_str), 'acc': 1}", weight=0.5)
    brevity = RewardSpec.model_validate({"function": "addition", "weight": -2.0})
    with ScoringPool([length, brevity]) as pool:
        (result,) = pool.score([item("#### truth and 5#### 5")])
    assert result.score == 0.5 * 22 - 2.0 * 0.1
    assert result.extras == {
        "score/score": 22.0,
        "score/acc": 1.0,
        "addition/score": 0.1,
        "addition/acc": 0.0,
        "addition/pred": "5",
        "acc": 1.0,
    }


def test_arguments_reach_built_in_scorers() -> None:
    spec = RewardSpec.model_validate({"function": "gsm8k", "arguments": {"format_score": 0.25}})
    with ScoringPool([spec]) as pool:
        assert pool.score([RewardItem(0, "x", "#### 1", "2")])[0].score == 0.25


BROKEN = {
    "loops": ("while True: pass", "RewardTimeout"),
    "sleeps": ("time.sleep(1000)", "RewardTimeout"),
    "ignores SIGTERM": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
        "RewardTimeout",
    ),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "RewardTimeout"),
    "holds the interpreter": (
        "return len(str(7 ** (10 ** 8 + len(solution_str))))",
        "RewardTimeout",
    ),
    "raises": ("raise ValueError('no')", "RewardRaised"),
    "exits": ("sys.exit(0)", "RewardRaised"),
    "interrupts": ("raise KeyboardInterrupt", "RewardRaised"),
    "raises what cannot be shown": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "RewardRaised",
    ),
    "recurses": ("def f(): return f()\nreturn f()", "RewardRaised"),
    "ends": ("os._exit(0)", "RewardDied"),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "RewardDied"),
    "kills its guardian": ("os.kill(os.getppid(), 9); time.sleep(1000)", "RewardDied"),
    "kills its group": ("os.killpg(0, 9)", "RewardDied"),
    "eats memory": ("return len(bytearray(8 << 30))", "RewardMemory"),
    "eats memory in pieces": (
        "kept = []\nwhile True: kept.append(bytearray(1 << 24))",
        "RewardMemory",
    ),
    "returns nothing": ("return None", "BadRewardResult"),
    "returns text": ("return '1'", "BadRewardResult"),
    "returns NaN": ("return float('nan')", "NonFiniteReward"),
    "writes into the pipes": (
        "for fd in range(3, 50):\n    try: os.write(fd, b'junk' * 5)\n    except OSError: pass\n"
        "time.sleep(1000)",
        "RewardDied",
    ),
    "closes everything": ("os.closerange(0, 100)", "RewardDied"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_call_costs_its_own_row_only(name: str, source: Callable[..., RewardSpec]) -> None:
    code, reason = BROKEN[name]
    guarded = f"if solution_str == 'bad':\n{textwrap.indent(code, '    ')}\nreturn 5"
    # Only who is to reach the limit may: a busy machine takes long to fill a gigabyte.
    seconds = 2 if reason == "RewardTimeout" else 300
    spec = source(guarded, seconds=seconds)
    with ScoringPool([spec], on_failure="zero", memory_bytes=1 << 30) as pool:
        results = pool.score([item(word) for word in ("good", "bad", "good", "good")])
    assert [result.score for result in results] == [5.0, 0.0, 5.0, 5.0]
    assert results[1].extras == {"failure": reason, "pred": "[INVALID]", "acc": 0.0}


def test_a_process_that_somebody_kills_costs_nothing(source: Source, tmp_path: Path) -> None:
    """The signal comes from outside and in the middle of a call; the call itself is sound."""
    marker = tmp_path / "pid"
    spec = source(
        f"path = {str(marker)!r}\n"
        "if os.path.exists(path): return 3\n"
        "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)\n"
        "time.sleep(1000)",
        seconds=60,
    )
    with ScoringPool([spec]) as pool:
        killer = threading.Thread(target=_kill_when_told, args=(marker,))
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
def test_a_process_that_somebody_kills_while_it_loads_costs_nothing(
    killed: set[int], source: Callable[..., RewardSpec], tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    code = KILLED_WHILE_IT_LOADS.format(path=str(starts), killed=killed)
    with ScoringPool([source(code, whole=True, seconds=60)]) as pool:
        results = pool.score([item("good"), item("bad"), item("good")])
    assert [result.score for result in results] == [3.0] * 3
    assert len(starts.read_text()) == max(killed) + 1


def test_processes_killed_again_and_again_while_they_load_are_no_wrong_input(
    source: Callable[..., RewardSpec],
) -> None:
    """Memory is short, say: as a wrong input it would be the end of the job for good."""
    spec = source("import os; os.kill(os.getpid(), 9)", whole=True)
    with pytest.raises(RewardFailed, match="was killed by signal 9"):
        ScoringPool([spec])
    assert not descendants()


def _kill_when_told(marker: Path) -> None:
    while not marker.exists():
        time.sleep(0.01)
    os.kill(int(marker.read_text()), signal.SIGKILL)


def test_a_raised_error_tells_where(source: Source) -> None:
    spec = source("def inner(): raise ValueError('line\\nbreak')\nreturn inner()")
    with ScoringPool([spec]) as pool, pytest.raises(RewardFailed) as caught:
        pool.score([item("x", row=17)])
    path = spec.source.path if spec.source else None
    assert str(caught.value) == (
        "spec.rewards[0].function 'score': row 17: RewardRaised: got ValueError: line\\nbreak: it "
        f"raised at {path}:3 inner < {path}:4 score"
    )


def test_failing_is_the_default_and_stops_the_rest(source: Source, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spec = source(f"open({str(seen)!r}, 'a').write('x'); raise ValueError")
    with ScoringPool([spec]) as pool, pytest.raises(RewardFailed):
        pool.score([item("x", row) for row in range(50)])
    assert len(seen.read_text()) == 1


def test_nan_has_an_error_of_its_own(source: Source) -> None:
    spec = source("return float('-inf')")
    with ScoringPool([spec]) as pool, pytest.raises(NonFiniteReward) as caught:
        pool.score([item("x", 3)])
    assert caught.value.value == float("-inf")
    assert "row 3" in str(caught.value)


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
    with ScoringPool([spec], on_failure="zero") as pool:
        pool.score([item("x")])
        assert running(f"sleep {marker}")
        pool.score([item("y")])
        assert not running(f"sleep {marker}")
    assert not running(str(tmp_path))


def test_a_fork_that_comes_back_answers_nothing(source: Source) -> None:
    spec = source("return 1 if os.fork() else 2")
    with ScoringPool([spec]) as pool:
        assert [pool.score([item("x")])[0].score for _ in range(5)] == [1.0] * 5


def test_a_gigabyte_of_output_is_cut(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = source("print('\\x1b[31mred'); [print('x' * 2**20) for _ in range(1024)]; return 1",
                  seconds=30)  # fmt: skip
    with ScoringPool([spec]) as pool:
        assert pool.score([item("x")])[0].score == 1.0
    lines = [record.getMessage() for record in caplog.records]
    assert sum(map(len, lines)) < 20_000
    assert lines[0].endswith("\\x1b[31mred")
    assert "more bytes of output dropped" in lines[-1]


def test_mutated_inputs_are_the_calls_own(source: Source) -> None:
    spec = source("extra_info['n'] += 1; arguments['m'].append(1)\n"
                  "return extra_info['n'] + len(arguments['m'])",
                  arguments={"m": []})  # fmt: skip
    shared = {"n": 1}
    with ScoringPool([spec]) as pool:
        for _ in range(3):
            assert pool.score([RewardItem(0, "x", "x", None, shared)])[0].score == 3.0
    assert shared == {"n": 1}


def test_the_environment_is_an_allow_list(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    with ScoringPool([source("return {'score': 1, 'names': ' '.join(os.environ)}")]) as pool:
        names = str(pool.score([item("x")])[0].extras["names"]).split()
    assert "PATH" in names
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(names)
    assert len(names) < 15


def test_descriptors_of_this_process_are_not_inherited(source: Source, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        code = "return {'score': 1, 'files': str([os.readlink(f'/proc/self/fd/{n}') for n in "
        code += "os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])}"
        with ScoringPool([source(code)]) as pool:
            assert "secret" not in str(pool.score([item("x")])[0].extras["files"])


UNLOADABLE = {
    "no file": (None, "no such file; a Python file"),
    "syntax": ("x = 1\ndef score(:\n", ":2: not Python: "),
    "package": ("import surely_not_installed\n", "it imports surely_not_installed, which is not"),
    "import": ("raise RuntimeError('x')\n", ":1 <module>: importing it raised RuntimeError: x"),
    "exit": ("import sys; sys.exit(3)\n", "importing it raised SystemExit: 3"),
    "name": ("def other(): pass\n", "has no such function; one of other"),
    "not callable": ("score = 5\n", "got score = int: not callable; a function"),
    "async": ("async def score(**all): return 1\n", "it is not awaited; def"),
    "signature": (
        "def score(solution_str): return 1\n",
        "it cannot be called with data_source, extra_info, ground_truth, solution_str: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLOADABLE)
def test_functions_that_cannot_be_loaded(
    name: str, source: Callable[..., RewardSpec], tmp_path: Path
) -> None:
    code, reason = UNLOADABLE[name]
    spec = source(code or "", whole=True)
    if code is None:
        (tmp_path / "reward0.py").unlink()
    with pytest.raises(ConfigError) as caught:
        ScoringPool([spec])
    (line,) = caught.value.problems
    assert line.startswith("spec.rewards[0].function: got ")
    assert reason in line
    assert not descendants()


def test_all_functions_that_cannot_be_loaded_are_told(source: Callable[..., RewardSpec]) -> None:
    unknown = RewardSpec.model_validate({"function": "gsm9k"})
    with pytest.raises(ConfigError) as caught:
        ScoringPool([source("x = 1", whole=True), unknown])
    first, second = caught.value.problems
    assert first.startswith("spec.rewards[0].function: got score: ")
    assert second == (
        "spec.rewards[1].function: got gsm9k: no built-in scorer has this name; one of gsm8k, "
        "addition, countdown, multiply, or source.path"
    )


def test_a_file_may_import_its_neighbours(source: Source, tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_reward.py").write_text("VALUE = 4\n")
    with ScoringPool([source("import neighbour_of_reward as n; return n.VALUE")]) as pool:
        assert pool.score([item("x")])[0].score == 4.0


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


@pytest.mark.parametrize("on_failure", ["fail", "zero"])
def test_nothing_is_left_when_this_process_is_killed(
    on_failure: OnFailure, source: Source, tmp_path: Path
) -> None:
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
        f"pool = ScoringPool([spec], on_failure={on_failure!r})\n"
        "pool.score([RewardItem(0, 'x', 'x', None)])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_for(lambda: running(f"sleep {marker}"))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not running(f"sleep {marker}"))
    assert not running(f"rewards.child {parent.pid}")


def wait_for(claim: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.05)
