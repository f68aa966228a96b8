from pathlib import Path
from typing import Any

import golden_lines
import pytest
from fusion_service import Service
from golden_lines import assert_lines, read_lines
from tool_calls import ask, problems_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_trainer.pod_environment import variables_of_code
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_tools.txt")
FUNCTIONS = """
import os
from verl.tools.function_tool import function_tool
from verl.tools.schemas import ToolResponse
loaded = []

def same(text, times=1):
    return text * times

async def later(text):
    return ToolResponse(text=text), 0.5, {"seen": 1}

@function_tool("renamed")
def named(text):
    return {"text": text, "key": os.environ.get("KEY"), "other": os.environ.get("OTHER")}

def counts(text=""):
    loaded.append(1)
    return str(len(loaded))

def needs(text, other):
    return text

def some(**arguments):
    return str(sorted(arguments))

class Bare:
    pass

class Refuses:
    def __init__(self, config, tool_schema):
        raise KeyError("depth")
    create = execute = release = None

class Room:
    def look(self, where):
        return where
    def see(self, text):
        return text

number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


def tool(path: str, name: str, **more: Any) -> dict[str, Any]:
    text = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "description": "d", "source": {"path": path}, "parameters": text} | more


def agent(*tools: dict[str, Any], **more: Any) -> AgentSpec:
    return AgentSpec.model_validate({"tools": list(tools), **more})


def test_functions(file: str, monkeypatch) -> None:
    monkeypatch.setenv("PPOJOB_TOOL_VARIABLES", "KEY ABSENT")
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("OTHER", "o")
    named = tool(file, "renamed", source={"path": file, "function": "named"})
    tools = [tool(file, "same"), tool(file, "later"), named, tool(file, "some")]
    tools += [
        tool(file, name, source={"path": file, "function": "counts"}) for name in ("one", "two")
    ]
    with ToolPool(agent(*tools), variables=variables_of_code("tools")) as pool:
        assert ask(pool, "same", '{"text": "ab", "times": 2}').text == "abab"
        made = ask(pool, "later", '{"text": "ab"}')
        assert (made.text, made.reward) == ("ab", 0.5)
        seen = '{"text": "a", "key": "k", "other": null}'
        assert ask(pool, "renamed", '{"text": "a"}').text == seen
        assert ask(pool, "some", '{"b": 1, "a": 2}').text == "['a', 'b']"
        assert [ask(pool, name).text for name in ("one", "two", "one")] == ["1", "2", "3"]
        wrong = ask(pool, "same", '{"txt": "a"}')
        assert wrong.failure == "raised"
        assert wrong.text.startswith("Error: same failed: TypeError: ")


def test_what_takes_long_to_load_is_not_loaded_for_a_call(tmp_path: Path) -> None:
    """Each job with tools starts some of these processes, and each loss of one starts another."""
    slow = "{'pydantic', 'asyncio', 'numpy', 'torch'}"
    path = tmp_path / "mine.py"
    path.write_text(f"import sys\ndef look():\n    return str({slow} & sys.modules.keys())\n")
    with ToolPool(agent(tool(str(path), "look", parameters={}), {"name": "calculator"})) as pool:
        assert ask(pool, "look").text == "set()"


def test_a_class_in_verls_form() -> None:
    path = str(Path(golden_lines.__file__).with_name("verl_tool.py"))
    guess = tool(path, "guess", source={"path": path, "function": "Guess"}, config={"step": 3})
    guess["parameters"] = {"type": "object", "properties": {"guess": {"type": "string"}}}
    with ToolPool(agent(guess)) as pool:
        for word, reward in (("a", 1.0), ("b", 0.0), ("fail", 0.0), ("a", 1.0)):
            made = ask(pool, "guess", f'{{"guess": "{word}"}}', b'{"ground_truth": "a"}')
            text = f"guess 3 1 {reward}"
            if word == "fail":  # released all the same
                text = "Error: guess failed: ValueError: no such guess"
            assert (made.text, made.reward) == (text, reward)


def test_answers_are_no_longer_than_the_job_allows(file: str) -> None:
    settings = {"maxToolResponseCharacters": 8, "toolResponseTruncateSide": "right"}
    with ToolPool(agent(tool(file, "same"), **settings)) as pool:
        assert ask(pool, "same", '{"text": "abcdefghi"}').text == "abcdefgh...(truncated)"
        assert ask(pool, "other").text == "Error: t...(truncated)"


def test_programs_run_in_the_sandbox_or_in_a_service_that_the_job_names(service: Service) -> None:
    for sandbox in (
        SandboxSpec(time_limit_seconds=2.0),
        SandboxSpec(url=service.url, time_limit_seconds=2.0),
    ):
        with ToolPool(agent({"name": "python"}), sandbox=sandbox) as pool:
            assert ask(pool, "python", '{"code": "print(6 * 7)"}').text == "42"
            failed = ask(pool, "python", '{"code": "print(1)\\nprint(1 / 0)"}')
            assert failed.failure == ""
            assert failed.text.startswith("1\nTraceback")
            assert failed.text.endswith("ZeroDivisionError: division by zero")
            endless = ask(pool, "python", '{"code": "while True: pass"}')
            assert (endless.text, endless.failure) == ("Error: it took too long.", "")
            if sandbox.url:
                service.answers = [{"status": "SandboxError", "message": "no room"}]
                refused = ask(pool, "python", '{"code": "print(1)"}')
                assert refused.text.endswith("/run_code ran nothing: SandboxError: no room")
            else:
                assert "Error" in ask(pool, "python", '{"code": "open(\'/etc/passwd\')"}').text
    assert len(service.asked) == 4


@pytest.mark.parametrize("case", EXPECTED)
def test_tools_that_cannot_be_used(case: str, file: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    tools = {
        "no file": tool(str(tmp_path / "none.py"), "f"),
        "import": tool(str(broken), "f"),
        "no such name": tool(file, "absent"),
        "no function": tool(file, "number"),
        "arguments": tool(file, "needs"),
        "bare class": tool(file, "Bare"),
        "class that raises": tool(file, "Refuses"),
        "settings of a function": tool(file, "same", config={"a": 1}),
        "no class": tool(file, "same.look"),
        "no method": tool(file, "Room.sit"),
        "arguments of a method": tool(file, "Room.look"),
        "settings of an environment": tool(file, "Room.see", config={"a": 1}),
    }
    chosen = list(tools.values()) if case == "all at once" else [tools[case]]
    named = [
        {**one, "name": f"t{n}", "source": {**one["source"], "function": one["name"]}}
        for n, one in enumerate(chosen)
    ]
    assert_lines(problems_of(agent(*named), tmp_path), EXPECTED[case])
