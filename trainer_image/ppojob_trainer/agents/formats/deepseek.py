"""DeepSeek-V4: `<｜DSML｜invoke name="NAME">` with a parameter for each argument.

An attribute of a parameter marks text: `<｜DSML｜parameter name="KEY" string="true">`.
"""

from ppojob_trainer.agents.formats.calls import (
    Call,
    Calls,
    Tools,
    blocks,
    elements,
    encoded,
    value_of,
)
from ppojob_trainer.json_value import Json

MARK = "\uff5cDSML\uff5c"
"""In every tag."""

_START, _END = f"<{MARK}tool_calls>", f"</{MARK}tool_calls>"
_END_TOKEN = "<\uff5cend\u2581of\u2581sentence\uff5c>"


def deepseek(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn, decoded with its special tokens."""
    text = text.replace(_END_TOKEN, "")
    return tuple(call for block in blocks(text, _START, _END) for call in _calls(block))


def _calls(block: str) -> list[Call]:
    found = []
    for name, body in elements(block, f'<{MARK}invoke name="', '">', f"</{MARK}invoke>"):
        arguments: dict[str, Json] = {}
        start, end = f'<{MARK}parameter name="', f"</{MARK}parameter>"
        for head, value in elements(body, start, '">', end):
            key, _, is_text = head.partition('" string="')
            if is_text in ("true", "false"):
                arguments[key] = value if is_text == "true" else value_of(value)
        found.append(Call(name, encoded(arguments)))
    return found
