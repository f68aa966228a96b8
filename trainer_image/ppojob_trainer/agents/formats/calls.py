"""Tool-call parsing: parsed calls, and linear-time parsing of tagged text.

All functions take time linear in the length of a text, unlike regular expressions with ``.*?``
between two tags: a policy may write one tag ten thousand times.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppojob_trainer.json_value import Json

Tools = Sequence[Mapping[str, Json]]
"""Schemas of the tools that a row may call, in OpenAI's form: `{"function": {"name": ...}}`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it."""

    name: str  # of the tool; there may be none of this name
    arguments: str  # a JSON object, not validated yet
    id: str = ""  # of the call; empty in most formats


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that names no tool."""

    why: str


Calls = tuple[Call | BadCall, ...]
"""The calls of a turn of the model, in order."""


@dataclass(frozen=True, slots=True)
class Format:
    """The tool-call format of a model family."""

    parse: Callable[[str, Tools], Calls]  # returns the calls of a turn; it never raises
    form: str  # an example of a call, for the docs
    keeps_special_tokens: bool = False  # whether `parse` needs the turn with its special tokens
    # End a turn, besides the model's end tokens. Most formats need none: a model ends its turn
    # after a call.
    stop_texts: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()  # texts of tokens that also end a turn
    # Formats the answer of a tool; None: the chat template does.
    answer: Callable[[str], str] | None = None
    # The message after a turn that lacks a required call; empty: such a turn is the last.
    invalid: str = ""

    def before_calls(self, text: str) -> str:
        """Return the text of a turn before its first call."""
        tag = self.form[: self.form.find(">") + 1]
        return text.partition(tag)[0] if tag.startswith("<") else ""


def encoded(value: Json) -> str:
    """Encode arguments as JSON. A lone surrogate, which UTF-8 cannot hold, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_utf8(text) else json.dumps(value)


def _is_utf8(text: str) -> bool:
    return text.encode(errors="replace").decode() == text


def value_of(text: str) -> Json:
    """Parse a text as JSON; returns the text itself if it is none."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def named_call(text: str) -> Call | BadCall:
    """Parse a call that is a JSON object with a name and arguments."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadCall(f"a call that is no JSON: {error}")
    return call_of(value, ("arguments",))


def call_of(value: Json, keys: Sequence[str]) -> Call | BadCall:
    """As `named_call`, from a parsed value, with arguments under one of these keys."""
    if not isinstance(value, dict):
        return BadCall("a call that is no JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not _is_utf8(name):
        return BadCall('a call without a "name" that is text')
    for key in keys:
        if key in value:
            return Call(name, encoded(value[key]))
    return BadCall(f'a call of {name} without "{keys[0]}"')


def blocks(text: str, start: str, end: str, *, open_ended: bool = False) -> list[str]:
    """Yield the text between each `start` and the next `end`.

    With `open_ended` a last block without an end extends to the end of the text.
    """
    found: list[str] = []
    at = text.find(start)
    while at >= 0:
        at += len(start)
        stop = text.find(end, at)
        if stop < 0:
            return [*found, text[at:]] if open_ended else found
        found.append(text[at:stop])
        at = text.find(start, stop + len(end))
    return found


def elements(text: str, start: str, head_end: str, end: str) -> Iterator[tuple[str, str]]:
    """Heads and bodies of elements, such as `<function=HEAD>BODY</function>`.

    A head is one line without quotes and angle brackets, unless `head_end` has them; a body ends
    at the first `end`.
    """
    at = text.find(start)
    while at >= 0 and (stop := text.find(head_end, at + len(start))) >= 0:
        at = text.rfind(start, at, stop) + len(start)
        head = text[at:stop]
        if head.strip() and "\n" not in head and ">" not in head:
            close = text.find(end, stop + len(head_end))
            if close < 0:
                return
            yield head.strip(), text[stop + len(head_end) : close]
            at = close + len(end)
        at = text.find(start, at)


def parameters_of(tools: Tools, name: str) -> dict[str, Mapping[str, Json]]:
    """Return the schemas of a tool's arguments by name; none without such a tool."""
    for tool in map(_function, tools):
        if tool.get("name") == name:
            properties = _object(_object(tool.get("parameters")).get("properties"))
            return {key: _object(value) for key, value in properties.items()}
    return {}


def required_of(tools: Tools) -> dict[str, set[str]]:
    """Return the required arguments of each tool, by its name."""
    found = {}
    for tool in map(_function, tools):
        required = _object(tool.get("parameters")).get("required")
        listed = required if isinstance(required, list) else []
        found[str(tool.get("name"))] = {str(one) for one in listed}
    return found


def _function(tool: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the inner part of a schema; some omit the outer one."""
    return _object(tool["function"]) if "function" in tool else tool


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}
