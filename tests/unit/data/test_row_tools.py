"""Rows that show the model some of the tools: what it sees, and what is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_files import PromptFiles, good_row

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.row_tools import created_tools, selected_tools

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
    rows = selecting(["ask", "search"], None, ["add", "add"], [], ["ask", "search"])
    path = files.lines("a.jsonl", *rows, good_row())
    spec = files.spec(path)
    with PromptDataset.open(spec.train, spec, files.chat) as dataset:
        prompts = dataset.rows(range(len(dataset)))
    all_of_them = "search add ask 3 + 5"
    assert [files.chat.decode(prompt.token_ids) for prompt in prompts] == [
        "ask search 3 + 5",
        all_of_them,
        "add 3 + 5",
        all_of_them,
        "ask search 3 + 5",
        all_of_them,
    ]
    told = Batch("train", prompts, samples=1, owners=1).prompt_tokens(0, len(prompts))
    assert [prompt.tools for prompt in told] == [
        ["ask", "search"],
        [],
        ["add"],
        [],
        ["ask", "search"],
        [],
    ]


def test_prompts_of_both_kinds_keep_their_places(files: PromptFiles) -> None:
    chat = [{"role": "user", "content": "a"}]
    add, all_of_them = TOOLS[1:2], TOOLS
    tools = [add, add, all_of_them, all_of_them]
    encoded = files.chat.encode_prompts(["b", chat, "c", chat], None, tools)
    texts = [files.chat.decode(ids) for ids in encoded]
    assert texts == ["b", "add a", "c", "search add ask a"]


@pytest.mark.parametrize(
    ("selection", "line"),
    [
        (
            ["add", "subtract"],
            'got "subtract": the row\'s agent has no such tool; a list of search, add, ask',
        ),
        (["add", 7], "got 7: the row's agent has no such tool; a list of search, add, ask"),
        ("add", 'got "add": no list of tools; a list of search, add, ask'),
        ({"add": 1}, 'got {"add": 1}: no list of tools; a list of search, add, ask'),
    ],
)
def test_tools_that_a_job_does_not_have(files: PromptFiles, selection: object, line: str) -> None:
    path = files.lines("a.jsonl", good_row(), *selecting(selection))
    assert files.errors(path) == [f"a.jsonl:2:extra_info.tool_selection: {line}"]


def test_data_for_a_tool_that_a_job_does_not_have(files: PromptFiles) -> None:
    made = {"create_kwargs": {"a": 1}}
    rows = [
        good_row(f"{n}", extra_info={"tools_kwargs": told})
        for n, told in enumerate(({"add": made, "subtract": None}, {"ad": made}, 7))
    ]
    assert files.warnings(files.lines("a.jsonl", *rows)) == [
        'a.jsonl:2:extra_info.tools_kwargs: got "ad": the row\'s agent has no such tool; '
        "one of search, add, ask"
    ]


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
