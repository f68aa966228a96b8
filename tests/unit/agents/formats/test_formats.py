import json
import random
import time
from pathlib import Path

import pytest

from ppojob_trainer.agents.formats.calls import BadCall, Call
from ppojob_trainer.agents.formats.table import FORMATS

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


DEEP = (
    '<tool_call>{{"name": "add", "arguments": {}</tool_call>',
    "<tool_call><function=add><parameter=a>{}</parameter>",
    "<|tool_call>call:add{{a:{}}}<tool_call|>",
    '{{"name": "add", "parameters": {}',
)
"""Calls with arguments of any depth."""


def marks_of(name: str) -> list[str]:
    """What a call is made of: `<a>x</a>` is `<a>`, `x` and `</a>`."""
    form = FORMATS[name].form.replace(">", ">\n").replace("<", "\n<")
    return sorted({mark for mark in form.split("\n") if mark})


@pytest.mark.parametrize("name", FORMATS)
def test_the_form_of_the_table_is_read(name: str) -> None:
    said = "" if name == "llama3_json" else "Well, "
    (call,) = FORMATS[name].parse(said + FORMATS[name].form, [ADD])
    assert isinstance(call, Call)
    expected = ("add", {"a": 1, "b": 2})
    if name == "search_r1":
        expected = ("search", {"query": "1 and 2"})
    assert (call.name, json.loads(call.arguments)) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_may_be_anything(name: str) -> None:
    form = FORMATS[name].form
    for tools in ([{}], [{"function": {}}], [{"function": {"name": "add", "parameters": 5}}]):
        assert FORMATS[name].parse(form, tools)


@pytest.mark.parametrize("name", FORMATS)
def test_a_turn_that_repeats_a_mark_takes_no_longer_than_it_is_long(name: str) -> None:
    """A search that starts anew at each mark takes minutes here."""
    began = time.process_time()
    for mark in marks_of(name):
        for behind in ("", "\n", *marks_of(name)):
            FORMATS[name].parse(mark * (200_000 // len(mark)) + behind, [ADD])
    assert time.process_time() - began < 30


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_that_a_model_writes_raises(name: str) -> None:
    draw = random.Random(7)
    words = [*marks_of(name), *'{}[": ', "add", "\\ud800", "\u2028", "1e999", "null"]
    texts = ["".join(draw.choices(words, k=draw.randrange(30))) for _ in range(2000)]
    deep = [call.format(mark * 90_000) for call in DEEP for mark in ("[", "a:{", "-")]
    for text in texts + deep:
        for call in FORMATS[name].parse(text, [ADD]):
            assert call.why if isinstance(call, BadCall) else call.name
            str(call).encode()


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', [("f", {"x": 1})]),
        (' <|python_tag|>{"name": "f", "arguments": {}}\n', [("f", {})]),
        (
            '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"y": [1]}}',
            [("f", {}), ("g", {"y": [1]})],
        ),
        ('{"name": "f", "parameters": {}} as asked', [("f", {})]),
        ('{"name": "f"}', ["a call of f without"]),
        ('{"name": "f", "parameters": {', ["a call that is no JSON"]),
        ('{"name": 5, "parameters": {}}', ["a call without a"]),
        ('{"temperature": 20}', []),
        ('Like {"name": "f", "parameters": {}}', []),
        ("{ not JSON }", []),
        ("5", []),
    ],
)
def test_llama3_json(text: str, calls: list[object]) -> None:
    for found, expected in zip(FORMATS["llama3_json"].parse(text, ()), calls, strict=True):
        if isinstance(found, BadCall):
            assert isinstance(expected, str)
            assert found.why.startswith(expected)
        else:
            assert (found.name, json.loads(found.arguments)) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "add"}</tool_call>'),
        ("hermes", "<tool_call>add(1, 2)</tool_call>"),
        ("gpt-oss", "<|channel|>commentary to=browser.open<|message|>{}<|call|>"),
        ("qwen3_coder", "<tool_call><function=add"),
        ("glm", "<tool_call></tool_call>"),
        ("seed", "<seed:tool_call>add</seed:tool_call>"),
        ("minimax", '<minimax:tool_call><invoke name="add" x="y"></invoke></minimax:tool_call>'),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>add<|tool_call_end|>"),
        ("gemma4", "<|tool_call>add(1, 2)<tool_call|>"),
        ("llama3_json", '{"name": "add"}'),
        ("search_r1", "I do not know."),
    ],
)
def test_what_names_no_tool_is_told(name: str, text: str) -> None:
    (call,) = FORMATS[name].parse(text, [ADD])
    assert isinstance(call, BadCall)
    assert call.why


HEAD, *CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "calls_of_verl.jsonl").read_text().splitlines()
]
"""First the tools; then what texts are to verl (1dda039) or Search-R1 (a14dc3a): ``theirs``.

``ours`` stands, with the reason, where it differs on purpose.
"""
OF_VERL = tuple(name for name in FORMATS if name not in ("llama3_json", "search_r1"))


@pytest.mark.parametrize("name", OF_VERL)
def test_calls_are_those_of_verl(name: str) -> None:
    cases = [case for case in CASES if case["format"] == name]
    assert len(cases) >= 40
    for case in cases:
        said = FORMATS[name].parse(case["text"], HEAD["tools"] if "tools" in case else ())
        calls = [call for call in said if isinstance(call, Call)]
        found = [[c.name, c.arguments, c.id][: 3 if c.id else 2] for c in calls]
        assert found == case.get("ours", case["theirs"])["calls"], case


def test_actions_are_those_of_search_r1() -> None:
    for case in CASES:
        if case["format"] == "search_r1":
            calls = FORMATS["search_r1"].parse(case["text"], ())
            match case["theirs"]:
                case None:
                    assert isinstance(calls[0], BadCall), case
                case ["answer", _]:
                    assert calls == (), case
                case ["search", query]:
                    (call,) = calls
                    assert isinstance(call, Call)
                    assert (call.name, json.loads(call.arguments)) == ("search", {"query": query})
