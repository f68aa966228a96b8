"""The type of what JSON can hold, for modules that must load without pydantic."""

from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
