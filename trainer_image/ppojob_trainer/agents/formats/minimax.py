"""MiniMax-M2: `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`.

They stand in `<minimax:tool_call>`; values are JSON or text.
"""

from ppojob_trainer.agents.formats.calls import (
    BadCall,
    Call,
    Spoken,
    Tools,
    blocks,
    elements,
    encoded,
    value_of,
)

_START, _END = "<minimax:tool_call>", "</minimax:tool_call>"
_NO_NAME = 'a call that does not begin with <invoke name="NAME">'


def minimax(text: str, _tools: Tools = ()) -> Spoken:
    """Read a turn."""
    if _START not in text or _END not in text:
        return Spoken(text)
    calls: list[Call | BadCall] = []
    for block in blocks(text, _START, _END):
        for name, body in elements(block, '<invoke name="', '">', "</invoke>"):
            parameters = elements(body, '<parameter name="', '">', "</parameter>")
            arguments = {key: value_of(value) for key, value in parameters}
            is_name = '"' not in name
            calls.append(Call(name, encoded(arguments)) if is_name else BadCall(_NO_NAME))
    return Spoken(text[: text.find(_START)], tuple(calls))
