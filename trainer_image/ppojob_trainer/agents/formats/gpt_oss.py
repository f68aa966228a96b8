"""gpt-oss: OpenAI's Harmony, https://cookbook.openai.com/articles/openai-harmony.

A turn is a list of messages. One that is addressed `to=functions.NAME` and ends with `<|call|>` is
a call. The prompt opens the first message, so the turn begins inside of it.
"""

import re

from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools

_START, _BODY, _CALL = "<|start|>", "<|message|>", "<|call|>"
_END = re.compile(r"<\|(?:end|return|call)\|>")
_TO = re.compile(r"\bto=([^\s<]+)")


def gpt_oss(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn, decoded with its special tokens."""
    calls: list[Call | BadCall] = []
    for message in text.split(_START):
        header, _, body = message.partition(_BODY)
        to, end = _TO.search(header), _END.search(body)
        if to is not None and end is not None and end[0] == _CALL:
            calls.append(_call(to[1], body[: end.start()]))
    return tuple(calls)


def _call(recipient: str, arguments: str) -> Call | BadCall:
    place, _, name = recipient.partition(".")
    if place != "functions" or not name:
        return BadCall(f"a call to {recipient}; functions are called to=functions.NAME")
    return Call(name, arguments)
