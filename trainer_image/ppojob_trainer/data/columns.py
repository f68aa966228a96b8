"""What the cells of a row mean: verl's columns, checked one by one.

prompt, data_source, reward_model.ground_truth and extra_info are read; ability, agent_name and
every other column are left alone.
"""

import datetime
import decimal
import math
from collections.abc import Mapping
from dataclasses import dataclass

from ppojob_api.problem import shown
from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.data.row_file import Row, Undecodable
from ppojob_trainer.json_value import Json

ROLES = ("system", "developer", "user", "assistant", "tool")
REWARD_COLUMN = "reward_model"
EXTRA_COLUMN = "extra_info"
_DEPTH = 32

Prompt = str | list[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Which columns hold what.

    Attributes:
        prompt: chat messages, or text.
        data_source: name of the task.
    """

    prompt: str = "prompt"
    data_source: str = "data_source"

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is read."""
        return (self.prompt, self.data_source, REWARD_COLUMN, EXTRA_COLUMN)


@dataclass(frozen=True, slots=True)
class Cells:
    """A row's content.

    Attributes:
        prompt: text, or chat messages.
        data_source: name of the task.
        ground_truth: what the reward function compares with; None when absent.
        extra_info: whatever else the row tells.
    """

    prompt: Prompt
    data_source: str
    ground_truth: Json
    extra_info: dict[str, Json]


class BadCell(Exception):  # noqa: N818  the cell is bad
    """One cell is wrong.

    Attributes:
        column: which, with the path inside it (``prompt[0].role``).
        got: what is there.
        why: what is wrong with it.
        allowed: what to write instead.
        reason_code: stable word.
    """

    def __init__(
        self, column: str, got: str, why: str, allowed: str, reason_code: DataReason
    ) -> None:
        self.column = column
        self.got = got
        self.why = why
        self.allowed = allowed
        self.reason_code = reason_code
        super().__init__(f"{column}: got {got}: {why}; {allowed}")


def read_cells(row: Row, names: ColumnNames) -> Cells:
    """Read a row.

    Raises:
        BadCell: a cell is missing or wrong; the first one.
    """
    for name in (names.prompt, names.data_source):
        if name not in row:
            raise BadCell(
                name,
                "no such column",
                f"the columns are {', '.join(map(str, row)) or 'none'}",
                "a column of that name, or spec.data.promptKey and dataSourceKey",
                DataReason.COLUMN_MISSING,
            )
    for name, cell in row.items():
        if isinstance(cell, Undecodable):
            raise BadCell(name, cell.got, cell.why, cell.allowed, cell.reason_code)
    prompt = _prompt(row[names.prompt], names.prompt)
    data_source = row[names.data_source]
    if not isinstance(data_source, str) or not data_source.strip():
        raise BadCell(
            names.data_source,
            shown(data_source),
            "it names the row's task",
            'text such as "openai/gsm8k"',
            DataReason.BAD_VALUE,
        )
    return Cells(
        prompt,
        _clean(data_source, names.data_source),
        _ground_truth(row.get(REWARD_COLUMN)),
        _mapping(row.get(EXTRA_COLUMN), EXTRA_COLUMN),
    )


def _prompt(cell: object, column: str) -> Prompt:
    if cell is None or cell == [] or (isinstance(cell, str) and not cell.strip()):
        raise BadCell(
            column,
            shown(cell),
            "there is nothing to answer",
            "text, or a list of chat messages",
            DataReason.EMPTY_PROMPT,
        )
    if isinstance(cell, str):
        return _clean(cell, column)
    if isinstance(cell, dict):
        cell = _messages_of_lists(cell, column)
    if not isinstance(cell, list):
        raise _bad_prompt(column, cell)
    messages = [_message(message, f"{column}[{index}]") for index, message in enumerate(cell)]
    contents = [message["content"] for message in messages]
    if not any(isinstance(content, str) and content.strip() for content in contents):
        raise BadCell(
            column,
            shown(contents),
            "there is nothing to answer",
            "at least one message with content",
            DataReason.EMPTY_PROMPT,
        )
    if messages[-1]["role"] == "assistant":
        raise BadCell(
            f"{column}[{len(messages) - 1}].role",
            shown("assistant"),
            "the conversation ends in an answer, and the policy is to give one",
            "a conversation without its last answer",
            DataReason.BAD_PROMPT,
        )
    return messages


def _bad_prompt(column: str, cell: object) -> BadCell:
    return BadCell(
        column,
        f"{type(cell).__name__} {shown(cell)}",
        "not a prompt",
        'text, or a list of messages such as {"role": "user", "content": "3 + 5"}',
        DataReason.BAD_PROMPT,
    )


def _messages_of_lists(cell: dict[object, object], column: str) -> list[object]:
    """A struct of lists, as some writers store a list of structs, turned round."""
    roles, contents = cell.get("role"), cell.get("content")
    if not isinstance(roles, list) or not isinstance(contents, list):
        raise _bad_prompt(column, cell)
    if len(roles) != len(contents):
        raise BadCell(
            column,
            f"{len(roles)} roles and {len(contents)} contents",
            "every message has one of each",
            "lists of equal length",
            DataReason.BAD_PROMPT,
        )
    return [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=True)
    ]


def _message(cell: object, column: str) -> dict[str, Json]:
    if not isinstance(cell, dict):
        raise _bad_prompt(column, cell)
    # Parquet gives every struct the fields of all: a null one was never written.
    message = {key: value for key, value in cell.items() if value is not None}
    if "role" not in message or "content" not in message:
        raise BadCell(
            column,
            f"a message with {', '.join(map(str, message)) or 'nothing'}",
            "a message has a role and content",
            '{"role": "user", "content": "..."}',
            DataReason.BAD_PROMPT,
        )
    if message["role"] not in ROLES:
        raise BadCell(
            f"{column}.role",
            shown(message["role"]),
            "unknown role",
            f"one of {', '.join(ROLES)}",
            DataReason.BAD_PROMPT,
        )
    if not isinstance(message["content"], str):
        raise BadCell(
            f"{column}.content",
            f"{type(message['content']).__name__} {shown(message['content'])}",
            "a message's content is text",
            "text; pictures and sound are not read",
            DataReason.BAD_PROMPT,
        )
    return _mapping(message, column)


def _ground_truth(cell: object) -> Json:
    if cell is None:
        return None
    if not isinstance(cell, dict):
        raise BadCell(
            REWARD_COLUMN,
            f"{type(cell).__name__} {shown(cell)}",
            "it holds the ground truth",
            '{"style": "rule", "ground_truth": ...}',
            DataReason.BAD_VALUE,
        )
    return _json(cell.get("ground_truth"), f"{REWARD_COLUMN}.ground_truth")


def _mapping(cell: object, column: str) -> dict[str, Json]:
    if cell is None:
        return {}
    if not isinstance(cell, dict):
        raise BadCell(
            column,
            f"{type(cell).__name__} {shown(cell)}",
            "it holds named values",
            "a struct, or an object in JSON lines",
            DataReason.BAD_VALUE,
        )
    return {
        _clean(str(key), column): _json(value, f"{column}.{key}") for key, value in cell.items()
    }


def _json(value: object, column: str, depth: int = 0) -> Json:
    """A cell as JSON: reward functions and sample files get nothing else."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return _clean(value, column)
        case float() if math.isfinite(value):
            return value
        case float():
            raise BadCell(
                column, repr(value), "not a number", "finite numbers", DataReason.NON_FINITE
            )
        case decimal.Decimal():
            return _json(float(value), column)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple() if depth < _DEPTH:
            return [_json(item, column, depth + 1) for item in value]
        case Mapping() if depth < _DEPTH:
            return {
                _clean(str(key), column): _json(item, f"{column}.{key}", depth + 1)
                for key, item in value.items()
            }
    raise BadCell(
        column,
        f"{type(value).__name__} {shown(value)}",
        "a reward function gets JSON values",
        "text, numbers, booleans, lists and structs",
        DataReason.BAD_VALUE,
    )


def _clean(text: str, column: str) -> str:
    """Refuse text that no tokenizer or file format carries faithfully."""
    if "\0" in text:
        raise BadCell(
            column,
            shown(text),
            "it holds a NUL character",
            "text without control characters",
            DataReason.FORBIDDEN_CHARACTER,
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadCell(
            column,
            ascii(text)[:80],
            "it holds half of a surrogate pair",
            "text that UTF-8 can encode",
            DataReason.NOT_UTF8,
        ) from None
    return text
