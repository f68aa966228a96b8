"""MiniMax-M2: `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`.

Calls are in `<minimax:tool_call>`; values are JSON or text.
"""

from ppojob_trainer.agents.formats.calls import (
    BadCall,
    Call,
    Calls,
    Tools,
    blocks,
    elements,
    encoded,
    value_of,
)

_START, _END = "<minimax:tool_call>", "</minimax:tool_call>"
_NO_NAME = 'a call that does not begin with <invoke name="NAME">'


def minimax(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn."""
    calls: list[Call | BadCall] = []
    for block in blocks(text, _START, _END):
        for name, body in elements(block, '<invoke name="', '">', "</invoke>"):
            parameters = elements(body, '<parameter name="', '">', "</parameter>")
            arguments = {key: value_of(value.strip()) for key, value in parameters}
            is_name = '"' not in name
            calls.append(Call(name, encoded(arguments)) if is_name else BadCall(_NO_NAME))
    return tuple(calls)
