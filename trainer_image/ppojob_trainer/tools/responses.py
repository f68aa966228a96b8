"""OpenAI's Responses API, as requests and answers of chat completions."""

from collections.abc import Iterator
from typing import Final

from ppojob_api.problem import shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.requests import Form, stream_of
from ppojob_trainer.tools.wire import Message

_LIMIT: Final = "max_output_tokens"
_TOOL: Final = ("name", "description", "parameters")
_OWN: Final = frozenset(
    {_LIMIT, "input", "instructions", "tools", "text", "include", "reasoning", "truncation"}
)
"""Keys that chat completions have by another name or in another form, and some without effect."""

_ITEMS: Final = ("message", "function_call", "function_call_output", "reasoning")


def _as_chat(request: Message) -> Message:
    """Return a request of the Responses API as one of chat completions."""
    text = request.get("text")
    form = text.get("format") if isinstance(text, dict) else text
    if isinstance(form, dict):
        form = {"type": form.get("type"), "json_schema": form}
    if "response_format" in request:
        raise BadResult("BadRequest", "response_format", "text.format in this API; omit it")
    given, told = request.get("input"), request.get("instructions")
    if not given or not isinstance(given, str | list):
        raise BadResult("BadRequest", f"input {shown(given)}", "a text, or a list of items")
    messages: list[Message] = [{"role": "system", "content": told}] if told else []
    items: list[Json] = given if isinstance(given, list) else [{"role": "user", "content": given}]
    for item in items:
        _append(messages, item)
    tools = request.get("tools") or []
    return {key: value for key, value in request.items() if key not in _OWN} | {
        "messages": messages,
        "max_tokens": request.get(_LIMIT),
        "response_format": form,
        "tools": [_tool(one) for one in tools] if isinstance(tools, list) else tools,
    }


def _tool(tool: Json) -> Json:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {key: tool[key] for key in _TOOL if key in tool}}


def _append(messages: list[Message], item: Json) -> None:
    """Append an item; calls belong to the message of the model before them."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if not isinstance(item, dict) or kind not in _ITEMS:
        raise BadResult("BadRequest", f"item {shown(item)}", f"one of {', '.join(_ITEMS)}")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        function = {key: item.get(key) for key in ("name", "arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        id_, output = item.get("call_id"), item.get("output")
        messages.append({"role": "tool", "tool_call_id": id_, "content": output})


def _as_response(answer: Message) -> Message:
    """Return a chat completion as an answer of the Responses API."""
    (choice,) = answer["choices"]
    number, message, usage = answer["id"], choice["message"], answer["usage"]
    is_cut = choice["finish_reason"] == "length"
    status = "incomplete" if is_cut else "completed"
    output: list[Json] = []
    if message["content"] or not message.get("tool_calls"):
        text = message["content"] or ""
        part: Message = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status}
            | {"content": [part]}
        )
    output += [
        {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"]}
        | {"status": "completed", **call["function"]}
        for call in message.get("tool_calls", ())
    ]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "model": answer["model"],
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _stream(answer: Message, _with_usage: bool) -> bytes:
    events = enumerate(_events(_as_response(answer)))
    return stream_of({**event, "sequence_number": number} for number, event in events)


def _events(response: Message) -> Iterator[Message]:
    """Yield the events of an answer, each of its items in one piece."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for number, item in enumerate(response["output"]):
        events = _events_of_message if item["type"] == "message" else _events_of_call
        for event in events(item):
            yield {**event, "output_index": number}
    yield {"type": f"response.{response['status']}", "response": response}


# Clients put an item together from its events: it is added empty.


def _events_of_message(item: Message) -> Iterator[Message]:
    (part,) = item["content"]
    place = {"item_id": item["id"], "content_index": 0}
    text = {**place, "logprobs": []}
    empty = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "item": empty}
    yield {"type": "response.content_part.added", "part": {**part, "text": ""}, **place}
    yield {"type": "response.output_text.delta", "delta": part["text"], **text}
    yield {"type": "response.output_text.done", "text": part["text"], **text}
    yield {"type": "response.content_part.done", "part": part, **place}
    yield {"type": "response.output_item.done", "item": item}


def _events_of_call(item: Message) -> Iterator[Message]:
    arguments, kind = item["arguments"], "response.function_call_arguments"
    place = {"item_id": item["id"]}
    empty = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "item": empty}
    yield {"type": f"{kind}.delta", "delta": arguments, **place}
    yield {"type": f"{kind}.done", "arguments": arguments, "name": item["name"], **place}
    yield {"type": "response.output_item.done", "item": item}


RESPONSES: Final = Form(_as_chat, _as_response, _stream)
