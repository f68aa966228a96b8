"""gpt-oss: OpenAI's Harmony, https://cookbook.openai.com/articles/openai-harmony.

A turn is a list of messages. One that is addressed `to=functions.NAME` and ends with `<|call|>` is
a call; those in the channel `analysis` are thoughts. The prompt opens the first message, so the
turn begins inside of it.
"""

import re

from ppojob_trainer.agents.formats.calls import BadCall, Call, Spoken, Tools

_START, _BODY, _CALL = "<|start|>", "<|message|>", "<|call|>"
_END = re.compile(r"<\|(?:end|return|call)\|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_TO = re.compile(r"\bto=([^\s<]+)")


def gpt_oss(text: str, _tools: Tools = ()) -> Spoken:
    """Read a turn, decoded with its special tokens."""
    first, *others = text.split(_START)
    if _BODY not in first:  # text before the first message
        content, messages = [first], others
    else:
        content, messages = [], [first, *others]
    calls: list[Call | BadCall] = []
    for message in messages:
        header, _, body = message.partition(_BODY)
        end = _END.search(body)
        said = body if end is None else body[: end.start()]
        to, channel = _TO.search(header), _CHANNEL.search(header)
        if to is None and (channel is None or channel[1] != "analysis"):
            content.append(said)
        elif to is not None and end is not None and end[0] == _CALL:
            calls.append(_call(to[1], said))
    return Spoken("".join(content), tuple(calls))


def _call(recipient: str, arguments: str) -> Call | BadCall:
    place, _, name = recipient.partition(".")
    if place != "functions" or not name:
        return BadCall(f"a call to {recipient}; functions are called to=functions.NAME")
    return Call(name, arguments)
