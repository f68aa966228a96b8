"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from ppojob_trainer.agents.formats.calls import Calls, Tools, blocks, named_call

_START, _END = "<tool_call>", "</tool_call>"


def hermes(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn."""
    return tuple(named_call(block) for block in blocks(text, _START, _END))
