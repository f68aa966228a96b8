"""GLM-4.5 and later: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...`.

Values are JSON, or else text.
"""

from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools
from ppojob_trainer.json_value import Json

_START, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def glm(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn."""
    return tuple(_call(block) for block in calls.blocks(text, _START, _END))


def _call(block: str) -> Call | BadCall:
    name, has_arguments, rest = block.partition(_KEY)
    if not name.strip():
        return BadCall("a call without the name of its function")
    arguments: dict[str, Json] = {}
    while has_arguments:
        key, _, after = rest.partition(_KEY_END)
        if after.lstrip().startswith(_VALUE):
            value, is_whole, rest = after.partition(_VALUE)[2].partition(_VALUE_END)
            if is_whole:
                arguments[key.rpartition(_KEY)[2].strip()] = calls.value_of(value.strip())
        else:
            rest = after
        _, has_arguments, rest = rest.partition(_KEY)
    return Call(name.strip(), calls.encoded(arguments))
