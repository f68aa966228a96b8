"""Seed-OSS: Qwen3-Coder's tags within `<seed:tool_call>`; values are JSON or text."""

from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools

_START, _END = "<seed:tool_call>", "</seed:tool_call>"


def seed(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn."""
    return tuple(_call(block) for block in calls.blocks(text, _START, _END))


def _call(block: str) -> Call | BadCall:
    function = next(calls.elements(block, "<function=", ">", "</function>"), None)
    if function is None:
        return BadCall("a call without <function=NAME>...</function>")
    name, body = function
    parameters = calls.elements(body, "<parameter=", ">", "</parameter>")
    return Call(
        name, calls.encoded({key: calls.value_of(value.strip()) for key, value in parameters})
    )
