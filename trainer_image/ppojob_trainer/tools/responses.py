"""OpenAI's Responses API, as requests and answers of chat completions."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ppojob_api.problem import shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.wire import Message

_LIMIT: Final = "max_output_tokens"
_TOOL: Final = ("name", "description", "parameters")
_OWN: Final = frozenset(
    {_LIMIT, "input", "instructions", "tools", "text", "include", "reasoning", "truncation"}
)
"""Keys that chat completions have by another name or in another form, and some without effect."""
_TEXT: Final[tuple[Json, ...]] = (None, {}, {"format": {"type": "text"}})


def as_chat(request: Message) -> Message:
    """Return a request of the Responses API as one of chat completions."""
    if (form := request.get("text")) not in _TEXT:
        raise BadResult("BadRequest", f"text {shown(form)}", "only texts without a form; omit it")
    given, told = request.get("input"), request.get("instructions")
    messages: list[Message] = [{"role": "system", "content": told}] if told else []
    for item in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        _append(messages, item if isinstance(item, dict) else {})
    tools = request.get("tools") or []
    return {key: value for key, value in request.items() if key not in _OWN} | {
        "messages": messages,
        "max_tokens": request.get(_LIMIT),
        "tools": [_tool(one) for one in tools] if isinstance(tools, list) else tools,
    }


def _tool(tool: Json) -> Json:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {key: tool[key] for key in _TOOL if key in tool}}


def _append(messages: list[Message], item: Mapping[str, Any]) -> None:
    """Append an item; calls belong to the message of the model before them."""
    kind = item.get("type", "message")
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
    elif kind != "reasoning":
        why = "messages, function_call and function_call_output are supported"
        raise BadResult("BadRequest", f"item {shown(dict(item))}", why)


def as_response(answer: Message) -> Message:
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


def response_events(answer: Message) -> Iterator[Message]:
    """Yield the events of an answer, each of its items in one piece."""
    for number, event in enumerate(_events(as_response(answer))):
        yield {**event, "sequence_number": number}


def _events(response: Message) -> Iterator[Message]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for number, item in enumerate(response["output"]):
        place = {"output_index": number, "item_id": item["id"]}
        yield {"type": "response.output_item.added", "output_index": number, "item": item}
        if item["type"] == "message":
            kind, key, value = "output_text", "text", item["content"][0]["text"]
            place |= {"content_index": 0, "logprobs": []}
        else:
            kind, key, value = "function_call_arguments", "arguments", item["arguments"]
            place |= {"name": item["name"]}
        yield {"type": f"response.{kind}.delta", "delta": value, **place}
        yield {"type": f"response.{kind}.done", key: value, **place}
        yield {"type": "response.output_item.done", "output_index": number, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}
