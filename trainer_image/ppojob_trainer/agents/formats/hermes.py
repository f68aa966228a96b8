"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from ppojob_trainer.agents.formats.calls import (
    Spoken,
    Tools,
    blocks,
    named_call,
    without_blocks,
)

_START, _END = "<tool_call>", "</tool_call>"


def hermes(text: str, _tools: Tools = ()) -> Spoken:
    """Read a turn."""
    calls = tuple(named_call(block) for block in blocks(text, _START, _END))
    return Spoken(without_blocks(text, _START, _END), calls)
