"""OpenAI chat-completion requests of a program, and their answers.

Unsupported requests are refused in one line: otherwise a program that requests another temperature,
say, would be trained on tokens of the job's temperature.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from ppojob_trainer.data.media.images import HASH, hash_of, hashed_part, images_of
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult, encodable, shown
from ppojob_trainer.tools.answers import REPLY_CHARACTERS, check_images, file_in_base64
from ppojob_trainer.tools.wire import Message, ModelTurn

_ROLES: Final = {"developer": "system"} | {
    role: role for role in ("system", "user", "assistant", "tool")
}
_OF_MESSAGES: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_READ: Final = frozenset(
    {"messages", "tools", "max_tokens", "max_completion_tokens"}
    | {"stop", "stream_options", "tool_choice", "response_format"}
)
_IGNORED: Final = frozenset(
    {"model", "user", "metadata", "store", "parallel_tool_calls", "seed", "service_tier"}
    | {"prompt_cache_key", "safety_identifier", "reasoning_effort", "verbosity"}
)
"""Keys without effect here; the job's `maxParallelCalls` limits parallel calls."""
_VALUES: Final[dict[str, tuple[Json, ...]]] = {
    "n": (1,),
    "stream": (False, True),
    "logprobs": (False,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}
"""Keys with the values that are supported."""
_EXACT: Final = 2.0**53
_STOPS: Final = 16
_STOP_CHARACTERS: Final = 100


class ChatRequest(NamedTuple):
    """A request, with normalised messages (`read_message`); a limit of 0 tokens is none."""

    messages: list[Message]
    tools: list[Message]
    max_tokens: int
    stop: list[str]  # texts that end the answer, which then lacks them
    json_schema: str  # of the answer, as JSON; empty for none
    model: Json  # repeated in the answer
    stream: bool  # whether the answer is sent as events
    with_usage: bool  # whether one of them has the numbers of tokens
    files: dict[str, bytes]  # images of the messages, by their hashes


def decode_body(body: bytes) -> Message:
    """Decode the body of a request."""
    try:
        return msgspec.json.decode(body, type=Message)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _refused("a body that is not a JSON object", str(error)) from None


def read_request(
    request: Message, sampling: Mapping[str, float], *, takes_images: bool
) -> ChatRequest:
    """Read a request; `sampling` are settings of the job that it may repeat."""
    supported = _VALUES | {key: (value,) for key, value in sampling.items()}
    for key, value in request.items():
        if value is None or key in _READ or key in _IGNORED:
            continue
        if key not in supported:
            raise _refused(f"{key} {shown(value)}", "it is not supported; omit it")
        if value not in (values := supported[key]):
            why = "this row is sampled with" if key in sampling else "supported:"
            allowed = " or ".join(map(shown, values))
            raise _refused(f"{key} {shown(value)}", f"{why} {allowed}; omit it")
    limits = [request.get(key) for key in ("max_completion_tokens", "max_tokens")]
    limit = next((one for one in limits if one is not None), 0)
    if type(limit) is not int or (limit < 1 and limits != [None, None]):
        raise _refused(f"max_tokens {shown(limit)}", "a number of tokens, at least 1")
    files: dict[str, bytes] = {}
    messages = _named([read_message(one, files) for one in _listed(request, "messages")])
    if not messages or messages[-1]["role"] == "assistant":
        why = "the last message must be one for the model to answer"
        raise _refused(f"messages {shown(request.get('messages'))}", why)
    if (size := sum(len(str(one["content"])) for one in messages)) > REPLY_CHARACTERS:
        raise _refused(f"{size} characters", f"a request has at most {REPLY_CHARACTERS}")
    check_images(images_of(messages, files), are_shown=takes_images)
    tools = [_tool(one) for one in _listed(request, "tools")]
    if (choice := request.get("tool_choice")) == "none" and tools:
        raise _refused(
            f"tool_choice {shown(choice)}", "the model may call any tool; omit the tools"
        )
    options = request.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    model, streams = request.get("model"), request.get("stream") is True
    # With tools the model may call one instead, in the notation of its format.
    schema = "" if tools else _json_schema(request.get("response_format"))
    sampled = (limit, _stops(request), schema)
    return ChatRequest(messages, tools, *sampled, model, streams, with_usage, files)


def _stops(request: Mapping[str, Json]) -> list[str]:
    found = request.get("stop") or []
    texts = [found] if isinstance(found, str) else _listed(request, "stop")
    sizes = [len(one) if isinstance(one, str) else 0 for one in texts]
    if len(texts) > _STOPS or not all(0 < size <= _STOP_CHARACTERS for size in sizes):
        why = f"at most {_STOPS} texts of 1 to {_STOP_CHARACTERS} characters"
        raise _refused(f"stop {shown(found)}", why)
    return [encodable(str(one)) for one in texts]


def _json_schema(form: Json) -> str:
    """Return the JSON schema of a `response_format`, as JSON; empty for text."""
    told = form if isinstance(form, dict) else {"type": form}
    kind, named = told.get("type"), told.get("json_schema")
    if kind in (None, "text"):
        return ""
    schema: Json = {"type": "object"} if kind == "json_object" else None
    if kind == "json_schema" and isinstance(named, dict):
        schema = named.get("schema")
    if not isinstance(schema, dict):
        why = (
            '{"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {...}}}'
        )
        raise _refused(f"response_format {shown(form)}", why)
    text = json.dumps(schema)
    if wrong := _why_unsupported(text):
        raise _refused(f"schema {shown(text)}", f"llguidance does not support it: {shown(wrong)}")
    return text


@lru_cache(maxsize=32)  # each turn of a program repeats its earlier requests
def _why_unsupported(schema: str) -> str:
    """Return llguidance's error for a JSON schema; empty if it compiles it."""
    from llguidance import LLMatcher  # late: few programs need it

    wrong: str = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return wrong


def read_message(message: object, files: dict[str, bytes] | None = None) -> Message:
    """Normalise a message, for storage and comparison.

    Clients return messages with additional keys, texts as parts, and arguments written otherwise.
    Names of agents are dropped. Images become `hashed_part`s; their files are added to `files`.
    Without `files` it is a stored message, whose images are such parts.
    """
    one = message if isinstance(message, dict) else {}
    role = _ROLES.get(str(one.get("role")))
    if role is None:
        raise _refused(f"message {shown(message)}", f"the role must be one of {', '.join(_ROLES)}")
    for key, value in one.items():
        if value and key not in _OF_MESSAGES:
            raise _refused(f"{key} {shown(value)} of a message", "it is not supported")
    found: Message = {"role": role, "content": _content(one.get("content"), files)}
    if calls := _listed(one, "tool_calls"):
        found["tool_calls"] = [_call(call) for call in calls]
    if role == "tool":
        found["tool_call_id"] = _text(one.get("tool_call_id"), "tool_call_id")
        found["name"] = _text(one.get("name") or "", "name")
    return found


def completion(number: int, model: Json, message: Message, turn: ModelTurn) -> Message:
    """Build the answer to a program from a turn of the model."""
    if "tool_calls" in message:
        message = {**message, "content": message["content"] or None}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": turn.finish_reason}
        ],
        "usage": {
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.completion_tokens,
            "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        },
    }


def _events(answer: Message, with_usage: bool) -> Iterator[Message]:
    """Yield the events of a `completion`: all of it in one piece, and its end."""
    head = {key: answer[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    (choice,) = answer["choices"]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
    yield {**head, "choices": [{**end, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [end]}
    if with_usage:
        yield {**head, "choices": [], "usage": answer["usage"]}


def stream_of(sent: Iterable[Message]) -> bytes:
    """Encode server-sent events; those with a type are named by it."""
    named = ((f"event: {one['type']}\n" if "type" in one else "", one) for one in sent)
    return b"".join(
        b"%bdata: %b\n\n" % (name.encode(), msgspec.json.encode(one)) for name, one in named
    )


def _stream(answer: Message, with_usage: bool) -> bytes:
    return stream_of(_events(answer, with_usage)) + b"data: [DONE]\n\n"


class Form(NamedTuple):
    """A form of OpenAI's API, by way of chat completions."""

    read: Callable[[Message], Message]  # returns a request of it as one of chat completions
    write: Callable[[Message], Message]  # returns a `completion` as an answer of it
    # Returns a `completion` as its events, for clients that ask for it with the numbers of tokens.
    stream: Callable[[Message, bool], bytes]


CHAT: Final = Form(lambda request: request, lambda answer: answer, _stream)


def _named(messages: list[Message]) -> list[Message]:
    """Add the name of the called tool to each tool message."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            id_ = message["tool_call_id"]
            if id_ not in names:
                raise _refused(f"tool_call_id {shown(id_)}", "no call before it has this id")
            message["name"] = names[id_]
    return messages


def _listed(request: Mapping[str, Json], key: str) -> Sequence[Json]:
    listed = request.get(key) or []
    if not isinstance(listed, list):
        raise _refused(f"{key} {shown(listed)}", "a list")
    return listed


def _content(content: Json, files: dict[str, bytes] | None) -> Json:
    """Return the text of a message, or its texts and images as parts."""
    found: list[Any] = [{"type": "text", "text": ""}]
    for part in content if isinstance(content, list) else [{"text": content or ""}]:
        one = part if isinstance(part, dict) else {}
        text, url = one.get("text"), one.get("image_url")
        if files is None and HASH in one:
            found.append(one)
        elif files is not None and url is not None:
            found.append(_image(url.get("url") if isinstance(url, dict) else url, files))
        elif not isinstance(text, str):
            why = "a text, or parts that are texts or images"
            raise _refused(f"content {shown(content)} of a message", why)
        elif "text" in found[-1]:
            found[-1]["text"] += encodable(text)
        else:
            found.append({"type": "text", "text": encodable(text)})
    if len(found) == 1:
        return str(found[0]["text"])
    return [one for one in found if one.get("text") != ""]


def _image(url: Json, files: dict[str, bytes]) -> Json:
    if not isinstance(url, str) or not url.startswith("data:") or ";base64," not in url:
        raise _refused(f"image_url {shown(url)}", "an image is sent as data:image/png;base64,...")
    file = file_in_base64(url)
    files[name := hash_of(file)] = file
    return hashed_part(name)


def _call(call: object) -> Message:
    one = call if isinstance(call, dict) else {}
    function = one.get("function")
    if not isinstance(function, dict):
        raise _refused(f"call {shown(call)}", 'it has id and function, {"name": ..., "arguments"}')
    found = {key: _text(function.get(key), key) for key in ("name", "arguments")}
    found["arguments"] = _arguments(found["arguments"])
    return {"id": _text(one.get("id"), "id"), "type": "function", "function": found}


def _arguments(text: str) -> str:
    """Normalise spaces and numbers of arguments, since many clients parse and rewrite them."""
    try:
        value = json.loads(text, parse_float=_number)
    except (ValueError, RecursionError):
        return text
    return encodable(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict) else text


def _number(text: str) -> float:
    """Parse a number as JavaScript writes it, where 1.0 is 1."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def _tool(tool: Json) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        why = '{"type": "function", "function": {"name": ..., "description", "parameters"}}'
        raise _refused(f"tool {shown(tool)}", why)
    return {"type": "function", "function": function}


def _text(value: Json, key: str) -> str:
    if not isinstance(value, str):
        raise _refused(f"{key} {shown(value)}", "a text")
    return encodable(value)


def _refused(got: str, why: str) -> BadResult:
    return BadResult("BadRequest", got, why)
