"""Assistant turns with tool calls or thoughts, which only the chat template can write.

The `content` of a turn is what the model writes. The format of a call or a thought is known to the
template alone, so such a turn is rendered after a dummy message; the turn is what follows the
header that a rollout would have begun it with.
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
    """Whether a turn is more than its content."""
    return any(message.get(key) for key in (CALLS, *_THOUGHTS))


def check_calls(message: Mapping[str, Json], place: str) -> None:
    """Refuse calls of another form than OpenAI's.

    Raises:
        BadCell: one is.
    """
    calls = message.get(CALLS) or []
    if not isinstance(calls, list):
        raise BadCell(f"{place}.{CALLS}", shown(calls), "no list of calls", f"[{_CALL}]")
    for number, call in enumerate(calls):
        function = _function(call)
        arguments = _arguments(function.get("arguments"))
        if not isinstance(function.get("name"), str) or arguments is None:
            where = f"{place}.{CALLS}[{number}]"
            raise BadCell(where, shown(call), "no call of a tool by its name", _CALL)


def written_turn(template: TurnTemplate, message: Mapping[str, Json], tools: Tools) -> list[int]:
    """Return the tokens of a turn, its end token included, as the policy would generate them.

    Raises:
        BadChatTemplate: the template refuses the turn, hides a part of it, or begins it with
            another header than the one that a rollout begins with.
    """
    opened = template.opening(tools)
    refused: list[BadChatTemplate] = []
    for talk in _talks(message):
        try:
            whole = template.render(talk, tools, open_turn=False)
        except BadChatTemplate as error:
            refused.append(error)
            continue
        turn = whole.removeprefix(opened).partition(_ANSWER)[0]
        if not whole.startswith(opened):
            why = "a turn with calls or thoughts begins otherwise than a turn to come"
        elif not all(said in turn for said in _words(message)):
            why = "it hides turns with tool calls or reasoning"
        elif any(said in turn for said in _unquoted(talk[1])):
            why = "it writes arguments of calls in no JSON"
        else:
            return template.ended(turn)
        refused.append(BadChatTemplate(f"{template.chat.template[1]}: {why}", why))
    raise refused[0]


def _words(message: Mapping[str, Json]) -> Iterator[str]:
    """What a template that shows all of the turn has in it."""
    yield from (call.name for call in _calls(message))
    for key in ("content", *_THOUGHTS):
        yield from str(message.get(key) or "").split()


def _unquoted(turn: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as Python would print them, which a template does that takes them for text."""
    for call in turn.get(CALLS, ()):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, dict) and arguments:
            text = str(arguments)
            if text != json.dumps(arguments, ensure_ascii=False):
                yield text


def _talks(message: Mapping[str, Json]) -> Iterator[list[Mapping[str, Any]]]:
    """Made-up conversations with the turn, best first.

    With an answer to each call the template knows that more follows: into a last turn some write
    an empty thought.
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
    """A turn with arguments as objects, as most templates want them, and as text, as others do.

    Some show calls only where the content is null.
    """
    turn = {"role": "assistant", "content": message["content"]}
    turn |= {key: message[key] for key in _THOUGHTS if message.get(key)}
    calls = list(_calls(message))
    if not calls:
        yield turn
        return
    for as_text in (False, True):
        told = [
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
        yield {**turn, CALLS: told}
        if not message["content"]:
            yield {**turn, "content": None, CALLS: told}


class _Call(NamedTuple):
    """A call of a tool, as `check_calls` has let it pass."""

    id: str
    name: str
    arguments: Json


def _calls(message: Mapping[str, Json]) -> Iterator[_Call]:
    calls = message.get(CALLS) or []
    assert isinstance(calls, list), "it was checked"
    for number, call in enumerate(calls):
        function = _function(call)
        given = call.get("id") if isinstance(call, dict) else None
        name = str(function["name"])
        yield _Call(str(given or f"call{number:05}"), name, _arguments(function.get("arguments")))


def _function(call: Json) -> Mapping[str, Json]:
    if not isinstance(call, dict):
        return {}
    function = call.get("function", call)
    return function if isinstance(function, dict) else {}


def _arguments(told: Json) -> Json:
    """The arguments of a call; None where they are no object."""
    if isinstance(told, dict) or told is None:
        return told or {}
    try:
        found = msgspec.json.decode(told) if isinstance(told, str) else None
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, dict) else None
