"""Template inputs of a row besides its messages: variables, and tool schemas.

Both raise `BadCell`.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_trainer.data.chat import Tools
from ppojob_trainer.data.columns import as_json, cell_of
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.json_value import Json

_SCHEMAS = 'a list of {"type": "function", "function": {"name": ...}}, or the same as JSON text'


class TemplateColumns:
    """Reads them from rows; equal schemas are one object, so equal rows are rendered together.

    Args:
        spec: names the columns.
        given: type of a job whose rows have their answers.
    """

    def __init__(self, spec: DataSpec, given: GivenType | None) -> None:
        self._variables = spec.apply_chat_template_kwargs
        self._columns = spec.template_columns
        self._tools_key = spec.tools_column(given)

    def variables(self, row: Row) -> Mapping[str, Json]:
        """Return the job's variables, overridden by those of the row that are not null."""
        if not self._columns:
            return self._variables
        own = {name: as_json(cell_of(row, name), name) for name in self._columns}
        return {**self._variables, **{k: value for k, value in own.items() if value is not None}}

    def tools(self, row: Row) -> Tools:
        """Return the tool schemas of a demonstration; empty without any."""
        if self._tools_key is None or self._tools_key not in row:
            return ()
        cell = cell_of(row, self._tools_key)
        try:
            value = msgspec.json.decode(cell.strip() or "[]") if isinstance(cell, str) else cell
        except msgspec.MsgspecError as error:
            raise BadCell(self._tools_key, shown(cell), str(error), _SCHEMAS) from None
        tools = as_json(value or [], self._tools_key)
        if not isinstance(tools, list) or not all(map(_is_schema, tools)):
            raise BadCell(self._tools_key, shown(cell), "not a list of tool schemas", _SCHEMAS)
        return _schemas(msgspec.json.encode(tools))


@lru_cache(maxsize=256)
def _schemas(text: bytes) -> Tools:
    schemas: Tools = msgspec.json.decode(text)
    return schemas


def _is_schema(tool: Json) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
