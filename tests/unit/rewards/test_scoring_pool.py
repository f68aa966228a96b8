import logging
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_lines import assert_lines, read_lines
from reward_functions import Source, descendants, item

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.pod_environment import variables_of_code
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem, RewardResult

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_functions.txt")
Functions = Callable[[Source], list[RewardSpec]]


def scored(*specs: RewardSpec, response: str = "x") -> RewardResult:
    """The result of one response by all of these."""
    with ScoringPool(specs) as pool:
        (result,) = pool.score([item(response, index=7)])
    return result


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
        with pytest.raises(RewardFailed, match="row 4: got data source 'my/MATH': no scorer"):
            pool.score([RewardItem(4, "my/MATH", "1", "1")])
    assert results[0] == RewardResult(1.0, {"acc": 1.0, "pred": "72"})
    assert results[1].extras["acc"] == 0.0


def test_a_function_of_ones_own(source: Source) -> None:
    spec = source(
        "return {'score': len(solution_str), 'seen': data_source + ground_truth + "
        "str(extra_info) + str(arguments)}",
        arguments={"factor": 2},
    )
    seen = {"seen": "minetruth{'index': 7}{'factor': 2}", "acc": 3.0}
    assert scored(spec, response="abc") == RewardResult(3.0, seen)


def test_a_function_that_asks_is_told_of_length_and_end(source: Source) -> None:
    code = """
        def asks(solution_str, finish_reason, response_tokens=9, **row):
            return {"score": response_tokens, "end": finish_reason}

        def has_its_own(response_tokens, **row):
            return {"score": response_tokens, "told": "finish_reason" in row}
        """
    asks = source(code, whole=True, function="asks")
    own = source(code, whole=True, function="has_its_own", arguments={"response_tokens": 5})
    row = RewardItem(0, "mine", "x", "t", {}, response_tokens=7, finish_reason="length")
    with ScoringPool([asks, own]) as pool:
        (result,) = pool.score([row])
    values = dict(result.extras)
    assert (values["asks/score"], values["asks/end"]) == (7.0, "length")
    assert (values["has_its_own/score"], values["has_its_own/told"]) == (5.0, 0.0)


def test_a_function_may_be_a_coroutine_and_what_it_leaves_open_lives_on(source: Source) -> None:
    spec = source(
        """
        import asyncio
        began = None

        async def score(data_source, solution_str, ground_truth, extra_info):
            global began
            loop = asyncio.get_running_loop()
            began = began or loop
            await asyncio.sleep(0)
            if solution_str == "wrong":
                raise KeyError(solution_str)
            return {"score": len(solution_str), "same_loop": began is loop}
        """,
        whole=True,
    )
    with ScoringPool([spec]) as pool:
        results = pool.score([item("a"), item("bb")])
        with pytest.raises(RewardFailed, match=r"it raised at \S+:11 score$"):
            pool.score([item("wrong")])
    assert [(one.score, one.extras["same_loop"]) for one in results] == [(1.0, 1.0), (2.0, 1.0)]


FAILING = """
if solution_str == "raise": raise KeyError("a")
if solution_str == "hang": time.sleep(60)
if solution_str == "die": os._exit(1)
return float(solution_str)
"""


def test_a_call_that_fails_may_have_a_score_of_its_own(source: Source, caplog) -> None:
    spec = source(FAILING, errorScore=-1.0, seconds=1.0)
    responses = ["0.5", "raise", "hang", "die", "nan", "2"]
    with ScoringPool([spec]) as pool, caplog.at_level(logging.WARNING):
        results = pool.score([item(text, row) for row, text in enumerate(responses)])
    assert [result.score for result in results] == [0.5, -1.0, -1.0, -1.0, -1.0, 2.0]
    assert [result.extras["failed"] for result in results] == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    told = [record.message for record in caplog.records if "it scores -1" in record.message]
    assert [text.partition(": row ")[2][0] for text in sorted(told)] == ["1", "2", "3", "4"]


def test_answers_are_in_the_order_of_the_rows(source: Source) -> None:
    spec = source("time.sleep(0.05 if int(solution_str) % 3 else 0); return int(solution_str)")
    with ScoringPool([spec], processes=3) as pool:
        results = pool.score([item(str(number), number) for number in range(20)])
    assert [result.score for result in results] == list(range(20))


def test_several_functions_are_summed_by_weight(source: Source) -> None:
    length = source("return {'score': len(solution_str), 'acc': 1}", weight=0.5)
    again = source("return 3")
    arguments = {"format_score": 0.25, "method": "flexible"}
    brevity = {"function": "gsm8k", "weight": -2.0, "arguments": arguments}
    result = scored(length, again, RewardSpec.model_validate(brevity), response="truth and 5")
    assert result.score == 0.5 * 11 + 3.0 - 2.0 * 0.25
    assert result.extras == {
        "score/score": 11.0,
        "score/acc": 1.0,
        "score.2/score": 3.0,
        "gsm8k/score": 0.25,
        "gsm8k/acc": 0.0,
        "gsm8k/pred": "5",
        "acc": 1.0,
    }


BROKEN = {
    "loops": ("while True: pass", "RewardTimeout"),
    "sleeps": ("time.sleep(1000)", "RewardTimeout"),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "RewardTimeout"),
    "holds the interpreter": ("return len(str(7 ** (10 ** 8 + len('x'))))", "RewardTimeout"),
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
def test_a_broken_call_fails_and_the_next_one_does_not(name: str, source: Source) -> None:
    code, reason = BROKEN[name]
    guarded = f"if solution_str == 'bad':\n{textwrap.indent(code, '    ')}\nreturn 5"
    # Only who is to reach the limit may: a busy machine takes long to fill a gigabyte.
    seconds = 2 if reason == "RewardTimeout" else 300
    spec = source(guarded, seconds=seconds)
    with ScoringPool([spec], memory_bytes=1 << 30) as pool:
        with pytest.raises(RewardFailed, match="row 1: ") as caught:
            pool.score([item("good"), item("bad", 1)])
        assert reason in f"{type(caught.value).__name__}: {caught.value}"
        assert [result.score for result in pool.score([item("good")] * 2)] == [5.0, 5.0]


def test_a_raised_error_tells_where(source: Source) -> None:
    spec = source("def inner(): raise ValueError('line\\nbreak')\nreturn inner()")
    with ScoringPool([spec]) as pool, pytest.raises(RewardFailed) as caught:
        pool.score([item("x", row=17)])
    path = spec.source.path if spec.source else None
    told = str(caught.value)
    assert told.startswith("spec.rewards[0].function 'score': row 17: RewardRaised: ")
    assert told.endswith(f"line\\nbreak: it raised at {path}:3 inner < {path}:4 score")


def test_failing_is_the_default_and_stops_the_rest(source: Source, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spec = source(f"open({str(seen)!r}, 'a').write('x'); raise ValueError")
    with ScoringPool([spec]) as pool, pytest.raises(RewardFailed):
        pool.score([item("x", row) for row in range(50)])
    assert len(seen.read_text()) == 1


def test_a_value_that_is_not_finite_is_named(source: Source) -> None:
    spec = source("return {'score': 1, 'bleu': float('nan')}")
    with ScoringPool([spec]) as pool, pytest.raises(RewardFailed) as caught:
        pool.score([item("x", 3)])
    assert str(caught.value).startswith("spec.rewards[0].function 'score': row 3: ")
    assert "'bleu'" in str(caught.value)


def test_a_gigabyte_of_output_is_cut(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = source("print('\\x1b[31mred'); [print('x' * 2**20) for _ in range(1024)]; return 1",
                  seconds=30)  # fmt: skip
    assert scored(spec).score == 1.0
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
    monkeypatch.setenv("PPOJOB_REWARD_VARIABLES", "JUDGE_KEY ABSENT")
    monkeypatch.setenv("JUDGE_KEY", "12")
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    spec = source(
        "import os\nKEY = os.environ['JUDGE_KEY']\n"
        "def score(**row): return {'score': KEY == '12', 'names': ' '.join(os.environ)}",
        whole=True,
    )
    with ScoringPool([spec], variables=variables_of_code("reward")) as pool:
        (seen,) = pool.score([item("x")])
    names = str(seen.extras["names"]).split()
    assert seen.score == 1.0
    assert {"PATH", "CUDA_VISIBLE_DEVICES"} <= set(names)  # a pod's GPUs are its functions' too
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(names)
    assert len(names) < 16
    with pytest.raises(
        ConfigError, match=r"reward0.py:2 <module>: importing it raised KeyError: 'JUDGE_"
    ):
        ScoringPool([spec])


def whole(code: str) -> Functions:
    return lambda source: [source(code, whole=True)]


def gsm8k(**arguments: object) -> Functions:
    spec = RewardSpec.model_validate({"function": "gsm8k", "arguments": arguments})
    return lambda _: [spec]


def names_of_every_call(source: Source) -> list[RewardSpec]:
    names = ("data_source", "extra_info", "ground_truth", "solution_str")
    return [source("return 1", arguments={name: 1, "other": 2}) for name in names]


def several(source: Source) -> list[RewardSpec]:
    return [source("x = 1", whole=True), RewardSpec.model_validate({"function": "gsm9k"})]


UNLOADABLE: dict[str, Functions] = {
    "no file": lambda source: [source("return 1", source={"path": "/no/such.py"})],
    "syntax": whole("x = 1\ndef score(:\n"),
    "package": whole("import surely_not_installed\n"),
    "import raises": whole("raise RuntimeError('x')\n"),
    "half a letter": whole("raise ValueError('\\ud83d')\n"),
    "import ends the process": whole("import os; os._exit(3)\n"),
    "import exits": whole("import sys; sys.exit(3)\n"),
    "name": whole("def other(): pass\n"),
    "not callable": whole("score = 5\n"),
    "generator": whole("def score(**row): yield 1.0\n"),
    "async generator": whole("async def score(**row): yield 1.0\n"),
    "class": whole("class score:\n    def __init__(self, **row): pass\n"),
    "signature": whole("def score(solution_str): return 1\n"),
    "form of TRL": whole("def score(completions, answer, **kwargs): return [1.0]\n"),
    "names of every call": names_of_every_call,
    "several": several,
    "an argument that the scorer lacks": gsm8k(way="flexible"),
    "an argument that a call gives itself": gsm8k(ground_truth="1"),
    "a value that the scorer lacks": gsm8k(method="Strict"),
    "a value of another type": gsm8k(score="1"),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_functions_that_cannot_be_loaded(name: str, source: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ScoringPool(UNLOADABLE[name](source))
    lines = [line.replace(f"{tmp_path}/", "") for line in caught.value.problems]
    assert_lines(lines, EXPECTED[name])
    assert not descendants()


def test_files_of_several_folders_have_neighbours_of_one_name(tmp_path: Path) -> None:
    """Imported with the file or by a call, as modules or from packages."""
    specs = []
    for number in (1, 2, 4):
        folder = tmp_path / f"folder{number}"
        (folder / "package").mkdir(parents=True)
        (folder / "neighbour.py").write_text(f"VALUE = {number}\n")
        (folder / "package" / "__init__.py").write_text("")
        (folder / "package" / "part.py").write_text("from neighbour import VALUE\n")
        (folder / "late.py").write_text("from neighbour import VALUE\ncalls = []\n")
        path = folder / "reward.py"
        path.write_text(
            "from neighbour import VALUE\nfrom package import part\n"
            "def score(**row):\n"
            "    import late\n"
            "    late.calls.append(1)\n"
            "    return 100 * VALUE + 10 * part.VALUE + late.VALUE + 1000 * len(late.calls)\n"
        )
        specs.append(
            RewardSpec.model_validate({"function": "score", "source": {"path": str(path)}})
        )
    with ScoringPool(specs) as pool:
        for call in (1, 2):
            (result,) = pool.score([item("x")])
            found = [result.extras[f"score{n}/score"] for n in ("", ".2", ".3")]
            assert found == [1000 * call + 111, 1000 * call + 222, 1000 * call + 444]


def test_files_of_one_folder_share_neighbours_and_are_modules_of_their_own(source, tmp_path):
    (tmp_path / "tally.py").write_text("calls = []\n")
    code = """
    import sys, tally
    def score(**row):
        tally.calls.append(1)
        return {"score": len(tally.calls), "name": __name__, "own": sys.modules[__name__].ME}
    ME = """
    result = scored(*(source(f"{code}{me}", whole=True) for me in (1, 2)))
    assert (result.extras["score/score"], result.extras["score.2/score"]) == (1.0, 2.0)
    assert (result.extras["score/own"], result.extras["score.2/own"]) == (1.0, 2.0)
    assert result.extras["score/name"] != result.extras["score.2/name"]
