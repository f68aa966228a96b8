"""What a format reads out of a turn, and how texts with tags are taken apart.

Everything here takes time that grows with the length of a text and no faster: a policy that writes
one tag ten thousand times must not stop the rank that holds its engine. Regular expressions with
``.*?`` between two tags do.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppojob_trainer.json_value import Json

Tools = Sequence[Mapping[str, Json]]
"""Schemas of the tools that a row may call, in OpenAI's form: `{"function": {"name": ...}}`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it.

    Attributes:
        name: of the tool; there may be none of this name.
        arguments: what should be a JSON object; whoever makes the call checks it.
        id: by which the model tells its calls apart; empty in most formats.
    """

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that names no tool; the model can be told why."""

    why: str


Calls = tuple[Call | BadCall, ...]
"""Of a turn of the model, in the order in which they stand."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a family of models writes calls.

    Attributes:
        parse: the calls of a turn; it never raises.
        form: an example of a call, for the docs.
        keeps_special_tokens: whether `parse` needs the turn with its special tokens.
        stop_texts: end a turn, besides the end tokens of the model. Most formats need none: a model
            that has called ends its turn.
        stop_tokens: texts of tokens that do.
        answer: writes the answer of a tool; None: the chat template does.
        invalid: what the model is told after a turn that should have had a call; empty: such a turn
            is the last.
    """

    parse: Callable[[str, Tools], Calls]
    form: str
    keeps_special_tokens: bool = False
    stop_texts: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()
    answer: Callable[[str], str] | None = None
    invalid: str = ""

    def before_calls(self, text: str) -> str:
        """What a turn with calls says before the first of them."""
        tag = self.form[: self.form.find(">") + 1]
        return text.partition(tag)[0] if tag.startswith("<") else ""


def encoded(value: Json) -> str:
    """Arguments as JSON. Half a surrogate pair, which no UTF-8 can hold, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_utf8(text) else json.dumps(value)


def _is_utf8(text: str) -> bool:
    return text.encode(errors="replace").decode() == text


def value_of(text: str) -> Json:
    """The JSON value that a text is; the text itself where it is none."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def named_call(text: str, keys: Sequence[str] = ("arguments",)) -> Call | BadCall:
    """A call that is a JSON object with a name, and arguments under the first key that is there."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadCall(f"a call that is no JSON: {error}")
    return call_of(value, keys)


def call_of(value: Json, keys: Sequence[str]) -> Call | BadCall:
    """As `named_call`, of a value that is read already."""
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
    """What stands between each `start` and the first `end` behind it.

    With `open_ended` a last block without an end reaches to the end of the text.
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
    """Schemas of a tool's arguments by name; none where there is no such tool."""
    for tool in map(_function, tools):
        if tool.get("name") == name:
            properties = _object(_object(tool.get("parameters")).get("properties"))
            return {key: _object(value) for key, value in properties.items()}
    return {}


def required_of(tools: Tools) -> dict[str, set[str]]:
    """Arguments that each tool needs, by its name."""
    found = {}
    for tool in map(_function, tools):
        required = _object(tool.get("parameters")).get("required")
        listed = required if isinstance(required, list) else []
        found[str(tool.get("name"))] = {str(one) for one in listed}
    return found


def _function(tool: Mapping[str, Json]) -> Mapping[str, Json]:
    """The inner part of a schema; some leave the outer one out."""
    return _object(tool["function"]) if "function" in tool else tool


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}
