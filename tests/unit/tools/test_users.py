import json
from pathlib import Path
from typing import Any

import golden_lines
import msgspec
import pytest
from golden_lines import assert_lines, read_lines
from tool_calls import ask, problems_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.answers import read_reply
from ppojob_trainer.tools.built_in.answer_tools import RIGHT, WRONG
from ppojob_trainer.tools.loop import first_difference
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.tools.wire import Conversation, ModelRequest, UserTurn

EXPECTED = read_lines(Path(__file__).parent / "bad_users.txt")
VERL = str(Path(golden_lines.__file__).with_name("verl_interaction.py"))
FUNCTIONS = """
import time
count = []

def polite(messages, query, unit="cm"):
    count.append(1)
    return f"{len(messages)} {query} {unit} {len(count)}"

async def later(messages, **told):
    return len(messages) > 2, "enough", 0.25

def odd(messages, value):
    return {"none": None, "list": ["a"], "text first": ("a", True), "nan": (False, "a", 1e999),
            "long": "x" * 2_000_000, "slow": lambda: time.sleep(100), "no score": (1, "")}[value]

def slow(messages, **told):
    time.sleep(100)

def notes(messages, chunks):
    said = yield
    for number, chunk in enumerate(chunks):
        if chunk == "slow":
            time.sleep(100)
        if chunk == "raise":
            raise KeyError(said)
        if chunk == "nothing":
            said = yield
        if chunk == "go on":
            said = yield f"{messages[0]['content']} {said}", 0.25
        elif chunk == "odd":
            said = yield [{"role": "user"}]
        else:
            note = {"role": "system", "content": "Note."}
            said = yield [note, {"role": "user", "content": chunk + said}]
    return float(len(said))

async def later_notes(messages):
    yield

def eager_notes(messages):
    yield "first"

def shops(messages):
    return [{"role": "user", "content": f"{len(messages)}"}]

class Bare:
    pass

class Refuses:
    def __init__(self, config):
        raise KeyError("depth")
    start_interaction = generate_response = finalize_interaction = None

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

class Idle(AgentLoopBase):
    pass

@register("stands_still")
class Still(AgentLoopBase):
    def run(self, sampling_params, **kwargs):
        pass

number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


def user(path: str, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "source": {"path": path}} | more


def agent(*users: dict[str, Any], **more: Any) -> AgentSpec:
    return AgentSpec.model_validate({"interactions": list(users), **more})


def talk(*contents: str, asked: tuple[int, ...] = ()) -> str:
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": content}
        for number, content in enumerate(contents)
    ]
    return msgspec.json.encode(Conversation(messages, 1, list(map(UserTurn, asked)))).decode()


def say(pool: ToolPool, name: str, heard: str, **told: Any) -> ToolAnswer:
    created = json.dumps({"name": name, **told}).encode()
    return ask(pool, name, heard, created, to_user=True)


@pytest.mark.processes
def test_a_class_in_verls_form_goes_on_where_it_was_in_whichever_process() -> None:
    source = {"path": VERL, "function": "PatientInteraction"}
    patient = user(VERL, "patient", source=source, config={"patience": 3})
    calculator = {"name": "calculator"}
    with ToolPool(agent(patient, tools=[calculator]), processes=2) as pool:
        for _ in range(2):  # in either process, nothing is left of the row
            first = say(pool, "patient", talk("q", "a"), query="1+1", ground_truth="2")
            assert first == ToolAnswer("patient 1+1: attempt 1 of 3", -0.5, "", first.seconds)
            heard = talk("q", "a", "no", "b", asked=(2,))
            second = say(pool, "patient", heard, query="1+1", ground_truth="2")
            assert (second.text, second.ends) == ("patient 1+1: attempt 2 of 3", False)
            assert second.reward == -0.25
            heard = talk("q", "a", "no", "b", "no", "c", asked=(2, 4))
            third = say(pool, "patient", heard, query="1+1", ground_truth="2")
            assert (third.text, third.ends) == ("patient 1+1: attempt 3 of 3", True)
            right = say(pool, "patient", talk("q", "2"), query="1+1", ground_truth="2")
            assert (right.reward, right.ends) == (1.0, True)
        raised = say(pool, "patient", talk("q", "a", "no", "raise", asked=(2,)), query="")
        assert raised.text == "Error: patient failed: ValueError: attempt 2"
        heard = talk("q", "raise", "Error", "b", asked=(2,))
        assert say(pool, "patient", heard, query="").text == "patient : attempt 2 of 3"
        assert [one.given for one in pool.row_calls["patient"]] == [2, 3]
        missing = say(pool, "patient", talk("q", "a"))
        assert missing.failure == "raised"
        assert ask(pool, "patient").failure == "unknown", "a model called its user"


def lines(*contents: str) -> bytes:
    roles = ("user", "system")[: len(contents)][::-1]
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    return msgspec.json.encode(messages)


def heard_by_loop(*turns: str, then: tuple[bytes | str, ...] = (), called: bool = False) -> str:
    """What a loop hears: turns of the model, and between them what it said."""
    heard = Conversation([{"role": "user", "content": "q"}], 1)
    if called:
        heard.messages.append({"role": "assistant", "content": "call"})
        heard.messages.append({"role": "tool", "content": "4"})
    for turn, answer in zip(turns, (*then, ""), strict=True):
        heard.messages.append({"role": "assistant", "content": turn})
        if isinstance(answer, bytes):
            heard.add_request(ModelRequest(msgspec.json.decode(answer), True))
        elif answer:
            heard.add_request(ModelRequest([{"role": "user", "content": answer}]))
    return msgspec.json.encode(heard).decode()


@pytest.mark.processes
def test_a_loop_is_a_generator_that_begins_contexts(file: str) -> None:
    with ToolPool(agent(user(file, "notes", timeLimitSeconds=3)), processes=2) as pool:
        chunks = ["one", "go on"]
        first = say(pool, "notes", heard_by_loop("a"), chunks=chunks)
        assert (first.text, first.context, first.ends) == ("", lines("Note.", "onea"), False)
        heard = heard_by_loop("a", "bc", then=(first.context,))
        called = heard_by_loop("a", "bc", then=(first.context,), called=True)
        assert say(pool, "notes", called, chunks=chunks).text == "q bc", "the prompt alone is told"
        second = say(pool, "notes", heard, chunks=chunks)
        assert (second.text, second.context, second.reward) == ("q bc", b"", 0.25)
        heard = heard_by_loop("a", "bc", "done", then=(first.context, second.text))
        last = say(pool, "notes", heard, chunks=chunks)
        assert (last.text, last.reward, last.ends, last.failure) == ("", 4.0, True, "")


@pytest.mark.processes
def test_what_goes_wrong_in_a_loop_ends_its_row(file: str) -> None:
    loop = user(file, "notes", timeLimitSeconds=1)
    with ToolPool(agent(loop, user(file, "eager_notes"))) as pool:

        def failed(*chunks: str, heard: str = heard_by_loop("a"), name: str = "notes") -> str:
            told = {"chunks": list(chunks)} if name == "notes" else {}
            answer = say(pool, name, heard, **told)
            assert (bool(answer.failure), answer.ends, answer.context) == (True, True, b"")
            return answer.text

        assert failed("slow") == "Error: notes gave no answer in 1 s."
        assert failed("raise") == "Error: notes failed: KeyError: 'a'"
        assert "a message has a role, one of system, user, assistant, and" in failed("odd")
        assert "a loop yields text, messages of a new context, or" in failed("nothing")
        assert "the first yield of a loop has no value" in failed(name="eager_notes")
        changed = heard_by_loop("a", "b", then=(lines("Note.", "1a"),))
        for chunks in (["go on"], ["two"], []):
            assert "the same messages after the same turns" in failed(*chunks, heard=changed)
        shorter = heard_by_loop(
            "a", "b", then=(lines("Note.", "onea")[:-1] + b',{"role":"user","content":"x"}]',)
        )
        assert "the same messages after the same turns" in failed("one", heard=shorter)


def test_the_first_message_that_differs_is_shown_around_the_difference() -> None:
    alike, one, other = ({"content": f"{'x' * 200}{end}"} for end in ("", "17.5", "18.5"))
    started = f"...{'x' * 39}1"
    assert first_difference([alike, one, alike], [alike, other]) == (
        f'messages[1] {started}7.5"}}',
        f'{started}8.5"}}',
    )
    assert first_difference([alike], [alike, {"content": "y"}]) == (
        "messages[1] nothing",
        '{"content": "y"}',
    )


@pytest.mark.processes
def test_a_function_may_begin_a_context_and_hears_the_last(file: str) -> None:
    with ToolPool(agent(user(file, "shops"))) as pool:
        heard = heard_by_loop("a", "b", then=(lines("2"),))
        assert say(pool, "shops", heard).context == lines("2")


@pytest.mark.processes
def test_functions_are_asked_once_a_turn(file: str) -> None:
    named = user(file, "kind", source={"path": file, "function": "polite"})
    users = [named, user(file, "later"), user(file, "odd"), user(file, "slow", timeLimitSeconds=1)]
    with ToolPool(agent(*users)) as pool:
        heard = talk("q", "a", "no", "b", asked=(2,))
        assert say(pool, "kind", heard, query="x").text == "4 x cm 1"
        assert say(pool, "kind", talk("q", "a"), query="x", unit="m").text == "2 x m 2"
        assert say(pool, "later", talk("q", "a")).ends is False
        made = say(pool, "later", heard)
        assert (made.text, made.reward, made.ends) == ("enough", 0.25, True)
        for value in ("none", "list", "text first", "nan"):
            made = say(pool, "odd", talk("q", "a"), value=value)
            assert (made.failure, made.reward, made.ends) == ("raised", 0.0, False)
        assert len(say(pool, "odd", talk("q", "a"), value="long").text) < 1_000_100
        assert say(pool, "odd", talk("q", "a"), value="no score").ends is True
        assert say(pool, "slow", talk("q", "a")).failure == "timeout"
        assert say(pool, "kind", talk("q", "a"), query="x").text == "2 x cm 1", "a new process"


@pytest.mark.processes
def test_gsm8k_has_verls_words_and_scores() -> None:
    with ToolPool(agent({"name": "gsm8k"})) as pool:
        for said, is_right in (("It is 1,234.", True), ("#### 1234", True), ("1 or 2", False)):
            made = say(pool, "gsm8k", talk("q", said), ground_truth="1234")
            expected = (RIGHT, 1.0, True) if is_right else (WRONG, 0.0, False)
            assert (made.text, made.reward, made.ends) == expected


@pytest.mark.processes
@pytest.mark.parametrize("case", EXPECTED)
def test_users_that_cannot_be_used(case: str, file: str, tmp_path: Path) -> None:
    users = {
        "no file": user(str(tmp_path / "none.py"), "f"),
        "no such name": user(file, "absent"),
        "no function": user(file, "number"),
        "bare class": user(file, "Bare"),
        "class that raises": user(file, "Refuses"),
        "settings of a function": user(file, "polite", config={"a": 1}),
        "async loop": user(file, "later_notes"),
        "program that is a class": user(file, "Bare", interface="openai"),
        "program that yields": user(file, "notes", interface="openai"),
        "agent loop that is a function": user(file, "polite", interface="agent_loop"),
        "agent loop of no name": user(file, "absent", interface="agent_loop"),
        "agent loop that is another class": user(file, "Bare", interface="agent_loop"),
        "agent loop without run": user(file, "Idle", interface="agent_loop"),
        "agent loop that waits": user(file, "stands_still", interface="agent_loop"),
    }
    chosen = list(users.values()) if case == "all, behind a tool" else [users[case]]
    tools = [{"name": "calculator"}] if len(chosen) > 1 else []
    assert_lines(problems_of(agent(*chosen, tools=tools), tmp_path), EXPECTED[case])


@pytest.mark.parametrize("value", [None, (), (True,), (True, None), (1, "a", 0.5, {}, 1), {}])
def test_what_is_no_reply(value: object) -> None:
    with pytest.raises(BadResult, match="a user returns"):
        read_reply(value)
