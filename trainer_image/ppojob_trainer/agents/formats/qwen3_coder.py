"""Qwen3-Coder and Qwen3.5: `<function=NAME><parameter=KEY>VALUE</parameter>...</function>`.

Values are unquoted, so the tool's schema determines their types. An incomplete turn is parsed as
far as possible, as by the parser of the model's publishers.
"""

import ast
import json
from collections.abc import Mapping

from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools
from ppojob_trainer.json_value import Json

_START, _END = "<tool_call>", "</tool_call>"
_MAX_LITERAL = 1000
"""Characters of a Python literal; a longer one could be too deep for Python itself."""


def qwen3_coder(text: str, tools: Tools = ()) -> Calls:
    """Parse a turn."""
    return tuple(
        _call(function, tools)
        for block in _found(text, _START, _END)
        for function in calls.blocks(block, "<function=", "</function>", open_ended=True)
    )


def _call(function: str, tools: Tools) -> Call | BadCall:
    name, is_whole, body = function.partition(">")
    if not is_whole:
        return BadCall("a call that breaks off in the name of its function")
    types = calls.parameters_of(tools, name)
    arguments: dict[str, Json] = {}
    for parameter in _found(body, "<parameter=", "</parameter>"):
        key, is_whole, value = parameter.partition(">")
        if is_whole:
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = _typed(value, types.get(key))
    return Call(name, calls.encoded(arguments))


def _found(text: str, start: str, end: str) -> list[str]:
    """Return blocks; a last one without an end extends to the end of the text."""
    found = calls.blocks(text, start, end, open_ended=True)
    if found and text.endswith("\n") and text.rfind(end) < text.rfind(start):
        found[-1] = found[-1].removesuffix("\n")
    return found


def _typed(value: str, schema: Mapping[str, Json] | None) -> Json:
    """Convert a value to the type of its schema; the text itself if that fails."""
    if value.lower() == "null":
        return None
    if schema is None:
        return value
    kind = str(schema.get("type", "string")).strip().lower()
    if kind in ("string", "str", "text", "varchar", "char", "enum"):
        return value
    if kind.startswith(("int", "uint", "long", "short", "unsigned")):
        return _number(value, int)
    if kind.startswith(("num", "float")):
        return _number(value, float)
    if kind in ("boolean", "bool", "binary"):
        return value.lower() == "true"
    return _literal(value)


def _number(value: str, kind: type[int] | type[float]) -> Json:
    try:
        number = kind(value)
        return int(number) if number == int(number) else number
    except (ValueError, OverflowError):  # no number, or not a finite one
        return value


def _literal(value: str) -> Json:
    """Parse a value as JSON, or else as a Python literal."""
    parsed = calls.value_of(value)
    if parsed is not value or len(value) > _MAX_LITERAL:
        return parsed
    try:
        literal: Json = json.loads(json.dumps(ast.literal_eval(value), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
    return literal
