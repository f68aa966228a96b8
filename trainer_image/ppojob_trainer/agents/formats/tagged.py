"""Formats with calls in tags: Hermes, Seed-OSS, MiniMax-M2, DeepSeek-V4 and GLM.

Hermes, Qwen2.5 and Qwen3 write a call as JSON. Seed-OSS has Qwen3-Coder's tags. In DeepSeek-V4 an
attribute marks text: `<｜DSML｜parameter name="KEY" string="true">`. Other values are JSON, or else
text. `table.FORMATS` has a call of each.
"""

from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools
from ppojob_trainer.json_value import Json

MARK = "\uff5cDSML\uff5c"
"""In every tag of DeepSeek."""
_END_TOKEN = "<\uff5cend\u2581of\u2581sentence\uff5c>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def hermes(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn of Hermes."""
    return tuple(map(calls.named_call, calls.blocks(text, "<tool_call>", "</tool_call>")))


def seed(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn of Seed-OSS."""
    found = list[Call | BadCall]()
    for block in calls.blocks(text, "<seed:tool_call>", "</seed:tool_call>"):
        function = next(calls.elements(block, "<function=", ">", "</function>"), None)
        if function is None:
            found.append(BadCall("a call without <function=NAME>...</function>"))
            continue
        name, body = function
        found.append(_call(name, body, ("<parameter=", ">", "</parameter>")))
    return tuple(found)


def minimax(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn of MiniMax-M2."""
    return tuple(
        BadCall('a call that does not begin with <invoke name="NAME">')
        if '"' in name
        else _call(name, body, ('<parameter name="', '">', "</parameter>"))
        for block in calls.blocks(text, "<minimax:tool_call>", "</minimax:tool_call>")
        for name, body in calls.elements(block, '<invoke name="', '">', "</invoke>")
    )


def _call(name: str, body: str, tags: tuple[str, str, str]) -> Call:
    parameters = calls.elements(body, *tags)
    arguments = {key: calls.value_of(value.strip()) for key, value in parameters}
    return Call(name, calls.encoded(arguments))


def deepseek(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn of DeepSeek-V4, decoded with its special tokens."""
    found = []
    text = text.replace(_END_TOKEN, "")
    for block in calls.blocks(text, f"<{MARK}tool_calls>", f"</{MARK}tool_calls>"):
        for name, body in calls.elements(block, f'<{MARK}invoke name="', '">', f"</{MARK}invoke>"):
            arguments: dict[str, Json] = {}
            start, end = f'<{MARK}parameter name="', f"</{MARK}parameter>"
            for head, value in calls.elements(body, start, '">', end):
                key, _, is_text = head.partition('" string="')
                if is_text in ("true", "false"):
                    arguments[key] = value if is_text == "true" else calls.value_of(value)
            found.append(Call(name, calls.encoded(arguments)))
    return tuple(found)


def glm(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn of GLM-4.5 or later."""
    return tuple(map(_glm_call, calls.blocks(text, "<tool_call>", "</tool_call>")))


def _glm_call(block: str) -> Call | BadCall:
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
