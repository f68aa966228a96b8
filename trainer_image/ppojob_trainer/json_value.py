"""JSON values, without an import of pydantic."""

import json
from typing import Any, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


def plain_text(value: Json) -> str:
    """Return text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def without_nulls(value: Any) -> Any:
    """Remove the null entries of all objects in a value."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
