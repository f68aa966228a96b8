"""Assistant turns with tool calls or thoughts, rendered by the chat template.

The `content` of a turn is the model's own text, but only the template knows the format of calls and
thoughts. So such a turn is rendered after a dummy message, and its text is what follows the header
with which a rollout would begin it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.data.chat import Tools
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.data.turns import ASKED, TurnTemplate
from ppojob_trainer.json_value import Json

CALLS = "tool_calls"
_THOUGHTS = ("reasoning_content", "thinking")
_ANSWER = "ppojobAnswerq"
_CALL = '{"function": {"name": "add", "arguments": {"a": 3}}}, arguments also as JSON text'


def needs_template(message: Mapping[str, Json]) -> bool:
    """Whether a turn has more than its content."""
    return any(message.get(key) for key in (CALLS, *_THOUGHTS))


def check_calls(message: Mapping[str, Json], place: str) -> None:
    """Refuse calls that are not in OpenAI's form."""
    calls = message.get(CALLS) or []
    if not isinstance(calls, list):
        raise BadCell(f"{place}.{CALLS}", shown(calls), "not a list of calls", f"[{_CALL}]")
    for number, call in enumerate(calls):
        if _read_call(call, number) is None:
            where = f"{place}.{CALLS}[{number}]"
            raise BadCell(where, shown(call), "not a call of a tool by its name", _CALL)


def written_turn(template: TurnTemplate, message: Mapping[str, Json], tools: Tools) -> list[int]:
    """Return the tokens of a turn, its end token included, as the policy would generate them."""
    opened = template.opening(tools)
    refused: list[BadChatTemplate] = []
    for chat in _chats(message):
        try:
            whole = template.render(chat, tools, open_turn=False)
        except BadChatTemplate as error:
            refused.append(error)
            continue
        turn = whole.removeprefix(opened).partition(_ANSWER)[0]
        if not whole.startswith(opened):
            why = "a turn with calls or thoughts has another header than a turn to generate"
        elif not all(word in turn for word in _words(message)):
            why = "it omits tool calls or reasoning of a turn"
        elif any(text in turn for text in _unquoted(chat[1])):
            why = "it does not write the arguments of calls as JSON"
        else:
            return template.ended(turn)
        refused.append(BadChatTemplate(f"{template.chat.template[1]}: {why}", why))
    raise refused[0]


def _words(message: Mapping[str, Json]) -> Iterator[str]:
    """Yield words that the complete rendered turn contains."""
    yield from (call.name for call in _calls(message))
    for key in ("content", *_THOUGHTS):
        yield from str(message.get(key) or "").split()


def _unquoted(turn: Mapping[str, Any]) -> Iterator[str]:
    """Yield arguments in Python's format, as printed by a template that expects JSON text."""
    for call in turn.get(CALLS, ()):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, dict) and arguments:
            text = str(arguments)
            if text != json.dumps(arguments, ensure_ascii=False):
                yield text


def _chats(message: Mapping[str, Json]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield dummy conversations with the turn, best first.

    First with an answer to each call: some templates add an empty thought to a last turn.
    """
    for turn in _forms(message):
        calls = turn.get(CALLS, ())
        answers = [
            {
                "role": "tool",
                "name": call["function"]["name"],
                "tool_call_id": call["id"],
                "content": _ANSWER,
            }
            for call in calls
        ]
        if answers:
            yield [ASKED, turn, *answers]
        yield [ASKED, turn]


def _forms(message: Mapping[str, Json]) -> Iterator[dict[str, Any]]:
    """Yield the turn with arguments as objects, which most templates expect, and as text.

    Some templates render calls only if the content is null.
    """
    turn = {"role": "assistant", "content": message["content"]}
    turn |= {key: message[key] for key in _THOUGHTS if message.get(key)}
    calls = _calls(message)
    if not calls:
        yield turn
        return
    for as_text in (False, True):
        written = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False)
                    if as_text
                    else call.arguments,
                },
            }
            for call in calls
        ]
        yield {**turn, CALLS: written}
        if not message["content"]:
            yield {**turn, "content": None, CALLS: written}


class _Call(NamedTuple):
    """A valid call of a tool."""

    id: str
    name: str
    arguments: Json


def _calls(message: Mapping[str, Json]) -> list[_Call]:
    calls = message.get(CALLS) or []
    assert isinstance(calls, list), "see `check_calls`"
    return [one for at, call in enumerate(calls) if (one := _read_call(call, at)) is not None]


def _read_call(call: Json, number: int) -> _Call | None:
    """Read a call, whose arguments are an object or JSON text; None if it is invalid."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return None
    name, arguments = function.get("name"), function.get("arguments")
    if arguments is None:
        arguments = {}
    elif isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.MsgspecError:
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return _Call(str(call.get("id") or f"call{number:05}"), name, arguments)
