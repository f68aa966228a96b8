"""Kimi K2: `functions.NAME:0` and the arguments as JSON, in special tokens."""

import re

from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools

_SECTION = "<|tool_calls_section_begin|>"
_START, _BODY, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


def kimi(text: str, tools: Tools = ()) -> Calls:
    """Parse a turn, decoded with its special tokens."""
    if _SECTION not in text:
        return ()
    return tuple(_call(block, tools) for block in calls.blocks(text, _START, _END))


def _call(block: str, tools: Tools) -> Call | BadCall:
    id_, is_whole, arguments = block.partition(_BODY)
    id_ = id_.strip()
    named = _ID.fullmatch(id_)
    if not is_whole or named is None:
        return BadCall("a call without name or arguments")
    value = calls.value_of(arguments.strip())
    keys = set(value) if isinstance(value, dict) else set()
    text = calls.encoded(value) if isinstance(value, dict) else arguments.strip()
    return Call(_tool(id_, named[1], keys, tools), text, id_)


def _tool(id_: str, name: str, keys: set[str], tools: Tools) -> str:
    """Return the name of the called tool.

    The prompt shows earlier calls by their ids only, so the model writes ids of other forms: then
    it is the tool whose name is in the id, or the only one whose required arguments are present.
    """
    needed = calls.required_of(tools)
    if name in needed:
        return name
    compact = id_.lower().replace("-", "_")
    within = [one for one in needed if one.lower() in compact]
    fitting = [one for one, required in needed.items() if required and required <= keys]
    if len(within) == 1:
        return within[0]
    return fitting[0] if len(fitting) == 1 else name
