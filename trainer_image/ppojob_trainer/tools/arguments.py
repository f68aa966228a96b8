"""Arguments of a call: validates what the model wrote against the tool's schema."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.json_value import Json

_SHOWN_CHARACTERS = 200
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class WrongArguments(Exception):  # noqa: N818  the arguments are wrong
    """Invalid arguments; its text continues "wrong arguments for f: "."""


def read_arguments(text: str, schema: Mapping[str, Json]) -> bytes:
    """Validate arguments, and return them as JSON; raises WrongArguments.

    Of the schema, `type`, `nullable`, `properties`, `items` and `required` are checked, at any
    depth.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WrongArguments(f"no JSON: {printable(str(error), _SHOWN_CHARACTERS)}") from None
    problem = next(_problems(value, {**schema, "type": "object"}, ""), None)
    if problem is not None:
        raise WrongArguments(problem)
    return msgspec.json.encode(value)


def _problems(value: Json, schema: Json, where: str) -> Iterator[str]:
    """Yield the mismatches; invalid parts of the schema are ignored."""
    if not isinstance(schema, dict) or (value is None and schema.get("nullable") is True):
        return
    given = schema.get("type")
    types = [one for one in (given if isinstance(given, list) else [given]) if one in _TYPES]
    if types and not any(_is_a(value, str(one)) for one in types):
        wrong = f"not of type {' or '.join(map(str, types))}"
        yield f"{where}: {wrong}" if where else wrong
        return
    if isinstance(value, dict):
        required = schema.get("required")
        for name in required if isinstance(required, list) else ():
            if name not in value:
                yield f"{_below(where, str(name))}: missing"
        properties = schema.get("properties")
        for name, inner in properties.items() if isinstance(properties, dict) else ():
            if name in value:
                yield from _problems(value[name], inner, _below(where, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, schema.get("items"), f"{where}[{index}]")


def _is_a(value: Json, word: str) -> bool:
    if isinstance(value, bool):
        return word == "boolean"
    if word == "integer" and isinstance(value, float):
        return math.isfinite(value) and value.is_integer()
    return isinstance(value, _TYPES[word])


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
