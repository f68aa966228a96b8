from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_files import PromptFiles, good_row

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs
from ppojob_trainer.data.row_checks import created_tools, selected_tools

pytestmark = pytest.mark.processes

TEMPLATE = (
    "{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    "{% if tools is not defined %}nothing {% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {}}}
    for name in ("search", "add", "ask")
]


@pytest.fixture
def files(tmp_path: Path, make_folder: Callable[..., Path]) -> Iterator[PromptFiles]:
    with ChatTokenizer(make_folder(TEMPLATE), tools=TOOLS) as chat:
        yield PromptFiles(tmp_path, chat)


def selecting(*selections: object) -> list[dict[str, object]]:
    return [good_row(extra_info={"tool_selection": one}) for one in selections]


def test_a_row_shows_the_tools_that_it_names_in_its_order(files: PromptFiles) -> None:
    selections = ["ask", "search"], None, ["add", "add"], [], ["ask", "search"]
    with files.open(files.lines("a.jsonl", *selecting(*selections), good_row())) as dataset:
        prompts = dataset.rows(range(len(dataset)))
    shown = ["ask search", "search add ask", "add", "search add ask", "ask search"]
    texts = [files.chat.decode(prompt.token_ids) for prompt in prompts]
    assert texts == [f"{names} 3 + 5" for names in (*shown, "search add ask")]
    told = Batch("train", 1, prompts, samples=1, owners=1).prompt_tokens(0, len(prompts))
    selected = ["ask", "search"], [], ["add"], [], ["ask", "search"], []
    assert [prompt.tools for prompt in told] == [*selected]


def test_prompts_of_both_kinds_keep_their_places(files: PromptFiles) -> None:
    chat = [{"role": "user", "content": "a"}]
    add, all_of_them = TOOLS[1:2], TOOLS
    told = [TemplateInputs({}, tools) for tools in (add, add, all_of_them, all_of_them)]
    encoded = files.chat.encode_prompts(["b", chat, "c", chat], told)
    texts = [files.chat.decode(ids) for ids in encoded]
    assert texts == ["b", "add a", "c", "search add ask a"]


@pytest.mark.parametrize(
    ("selection", "line"),
    [
        (["add", "subtract"], 'got "subtract": the row\'s agent has no such tool'),
        (["add", 7], "got 7: the row's agent has no such tool"),
        ("add", 'got "add": not a list of tools'),
        ({"add": 1}, 'got {"add": 1}: not a list of tools'),
    ],
)
def test_tools_that_a_job_does_not_have(files: PromptFiles, selection: object, line: str) -> None:
    path = files.lines("a.jsonl", good_row(), *selecting(selection))
    expected = f"a.jsonl:2:extra_info.tool_selection: {line}; a list of search, add, ask"
    assert files.errors(path) == [expected]


def test_a_job_without_tools_reads_neither(tmp_path: Path, chat: ChatTokenizer) -> None:
    files = PromptFiles(tmp_path, chat)
    told = good_row(extra_info={"tools_kwargs": {"ad": {"create_kwargs": {}}}})
    path = files.lines("a.jsonl", *selecting(["add"], 7), told)
    assert files.errors(path) == []
    assert not any("kwargs" in line for line in files.warnings(path))


def test_what_a_row_says_of_its_tools() -> None:
    kwargs = {"add": {"create_kwargs": {"a": 1}}, "ask": {"create_kwargs": 1}, "search": 2}
    assert created_tools({"tools_kwargs": kwargs}) == {"add": b'{"a":1}'}
    assert created_tools({"tools_kwargs": [1]}) == {}
    assert created_tools({}) == {}
    assert selected_tools({}) == []
    assert selected_tools({"tool_selection": "add"}) == []
