"""Columns of a row: verl's columns, checked cell by cell.

prompt, data_source, reward_model.ground_truth and extra_info are read, and agent_name in jobs with
agents; ability and every other column are ignored. A job with an answer column has rows in plain
form: a question, an answer, and other columns, which become extra_info. All readers raise `BadCell`
for the first cell that is missing or invalid.
"""

import contextlib
import datetime
import decimal
import math
from collections.abc import Collection, Mapping

from pydantic.alias_generators import to_camel

from ppojob_api.problem import ABSENT, shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import PAIRS, GivenType
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.data.prompt_store import Prompt, PromptRow
from ppojob_trainer.json_value import Json

ROLES = ("system", "developer", "user", "assistant", "tool")
REWARD_COLUMN = "reward_model"
EXTRA_COLUMN = "extra_info"
GROUND_TRUTH = f"{REWARD_COLUMN}.ground_truth"
AGENT_COLUMN = "agent_name"
INTERACTION = "interaction_kwargs"
"""Entry of extra_info with the name and the arguments of a row's user simulator."""


def allowed_columns(spec: DataSpec | None, name: str) -> str:
    """Return what is allowed instead of a missing column, with the field that names it."""
    if spec is None:
        return "a column of that name, or the name of another in spec.data"
    # Demonstrations have fields of their own.
    of_demonstrations = () if spec.demonstrations else ("demonstration",)
    keys = [key for key in DataSpec.model_fields if key.endswith("_key")]
    named = [key for key in keys if str(getattr(spec, key)).partition(".")[0] == name]
    fields = [key for key in named if key.startswith(of_demonstrations)]
    fields = fields or [key for key in named if not key.startswith("demonstration")]
    if not fields:  # the answer column of some types has a default name
        fields = ["template_columns" if name in spec.template_columns else "answer_key"]
    where = " or ".join(f"spec.data.{to_camel(field)}" for field in fields)
    others = ", or spec.data.dataSource for all rows" if "data_source_key" in fields else ""
    return f"a column of that name, or the name of another in {where}{others}"


def required_columns(spec: DataSpec, *, given: GivenType | None = None) -> tuple[str, ...]:
    """Return the columns that every file of a job must have."""
    if given is not None:
        keys = spec.answer_columns(given)
        if given not in PAIRS and not spec.split_pairs:
            keys = (spec.prompt_key, *keys)  # pairs may contain the prompt
        if given == "kto" and not spec.split_pairs:
            keys = (*keys, spec.label_key)
        if spec.margin_key is not None:
            keys = (*keys, spec.margin_key)
        names = [key.partition(".")[0] for key in keys]
        return tuple(dict.fromkeys([*names, *spec.template_columns]))
    source = (spec.data_source_key,) if spec.data_source is None else ()
    answer = (spec.answer_key,) if spec.answer_key else ()
    others = [key for key in (spec.teacher_prompt_key, spec.guidance_key) if key is not None]
    more = [key.partition(".")[0] for key in others]
    return (spec.prompt_key, *source, *answer, *more, *spec.template_columns)


def read_columns(
    spec: DataSpec, *, given: GivenType | None = None, media: Collection[str] = ()
) -> tuple[str, ...] | None:
    """Return the columns to read from a job's files, as far as they exist; None for all."""
    if given is None and spec.answer_key:
        return None
    names = [spec.prompt_key.partition(".")[0], *required_columns(spec, given=given)]
    names += [REWARD_COLUMN, EXTRA_COLUMN, AGENT_COLUMN, spec.data_source_key, *media]
    curriculum = spec.curriculum.key if spec.curriculum else None
    names += filter(None, [curriculum, spec.scores_key, spec.tools_column(given)])
    return tuple(dict.fromkeys(names))


def read_row(
    row: Row, spec: DataSpec, *, has_agents: bool, media: Collection[str] = ()
) -> PromptRow:
    """Read a row in verl's or in plain form.

    Media columns are read separately (`row_reader`).
    """
    required = required_columns(spec)
    for name in required:
        if name not in row:
            raise _no_such_column(row, name, spec)
    others = row.keys() - set(required) if spec.answer_key else set()
    others -= {name for name in media if row.get(name) is not None}
    prompt = as_prompt(row[spec.prompt_key], spec.prompt_key, spec)
    data_source = row.get(spec.data_source_key)
    if data_source is None:
        data_source = spec.data_source
    if not isinstance(data_source, str) or not data_source.strip():
        why, allowed = "it selects the reward function of the row", 'text such as "openai/gsm8k"'
        raise BadCell(spec.data_source_key, shown(data_source), why, allowed)
    if spec.answer_key is not None:
        truth, info = as_json(row[spec.answer_key], spec.answer_key), _others(row, others)
    else:
        truth = _ground_truth(row.get(REWARD_COLUMN))
        info = mapping_of(row.get(EXTRA_COLUMN), EXTRA_COLUMN)
    agent = row.get(AGENT_COLUMN) if has_agents else None
    if agent is not None and not isinstance(agent, str):
        raise BadCell(AGENT_COLUMN, shown(agent), "it names the row's agent", "text")
    return PromptRow(
        index=-1,
        token_ids=(),
        prompt=prompt,
        data_source=data_source,
        ground_truth=truth,
        extra_info=info,
        agent=agent or "",
        known_scores=known_scores(row, info, spec.scores_key) if spec.scores_key else (),
        teacher_prompt=_teacher_prompt(row, prompt, spec),
    )


def _teacher_prompt(row: Row, prompt: Prompt, spec: DataSpec) -> Prompt | None:
    """Return the teacher's prompt of a row, if it differs from the policy's."""
    key = spec.teacher_prompt_key
    if key is None:
        return None
    found = as_prompt(cell_of(row, key, spec), key, spec)
    if isinstance(found, str) is not isinstance(prompt, str):
        own, other = ("text", "messages") if isinstance(found, str) else ("messages", "text")
        why, allowed = f"{spec.prompt_key} is {other}", f"{other}, as for the policy"
        raise BadCell(key, own, why, allowed)
    return found


def cell_of(row: Row, key: str, spec: DataSpec | None = None) -> object:
    """Return a cell, or an entry of a struct, such as `extra_info.question`."""
    name, *path = [key] if key in row else key.split(".")
    if name not in row:
        raise _no_such_column(row, name, spec)
    cell: object = row[name]
    for entry in path:
        if not isinstance(cell, Mapping) or entry not in cell:
            why, allowed = f"it has no entry {entry}", f"a struct with {'.'.join(path)}"
            raise BadCell(name, shown(cell), why, allowed)
        cell = cell[entry]
    return cell


def _no_such_column(row: Row, name: str, spec: DataSpec | None) -> BadCell:
    why = f"the columns are {', '.join(map(str, row)) or 'none'}"
    return BadCell(name, "no such column", why, allowed_columns(spec, name))


def known_scores(row: Row, info: Mapping[str, Json], name: str) -> tuple[float, ...]:
    """Return scores of earlier responses to a row; empty for an empty cell."""
    value = row.get(name, info.get(name))
    found = [_finite(one) for one in value] if isinstance(value, list | tuple) else [None]
    if value is None:
        return ()
    scores = tuple(one for one in found if one is not None)
    if len(scores) != len(found):
        why = "spec.data.scoresKey reads earlier scores from it"
        raise BadCell(name, shown(value), why, "a list of finite numbers")
    return scores


def _finite(value: object) -> float | None:
    if isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    return None


def difficulty_of(row: Row, name: str) -> float:
    """Return the difficulty of a row, from a column or an entry of extra_info."""
    columns = row if name in row else mapping_of(row.get(EXTRA_COLUMN), EXTRA_COLUMN)
    value = columns.get(name)
    if (number := _finite(value)) is not None:
        return number
    got, why = ABSENT if value is None else shown(value), "spec.data.curriculum orders rows by it"
    raise BadCell(name, got, why, "a finite number, in a column or in extra_info")


def _others(row: Row, names: Collection[str]) -> dict[str, Json]:
    """Return the remaining columns as JSON, without cells that are not JSON."""
    found = {}
    for name, cell in row.items():
        if name in names:
            with contextlib.suppress(BadCell):
                found[str(name)] = as_json(cell, name)
    return found


def as_prompt(cell: object, column: str, spec: DataSpec) -> Prompt:
    """Read a prompt: text, or chat messages that do not end with an assistant message."""
    if isinstance(cell, str) and cell.strip():
        return [{"role": "user", "content": cell}] if spec.text_prompts == "user_message" else cell
    messages = conversation(cell, column)
    if messages[-1]["role"] == "assistant":
        raise BadCell(
            f"{column}[{len(messages) - 1}].role",
            shown("assistant"),
            "the conversation ends with an assistant message, but the policy generates it",
            "a conversation without its last answer, or that in a column of its own "
            "(spec.data.answerKey of sft)",
        )
    return messages


def conversation(cell: object, column: str, *, calls: bool = False) -> list[dict[str, Json]]:
    """Read chat messages, at least one with content.

    With `calls`, a message with tool calls needs no content.
    """
    if cell is None or cell == [] or (isinstance(cell, str) and not cell.strip()):
        raise BadCell(column, shown(cell), "it is empty", "text, or a list of chat messages")
    if not isinstance(cell, list):
        raise _bad_prompt(column, cell)
    messages = [
        _message(message, f"{column}[{index}]", calls=calls) for index, message in enumerate(cell)
    ]
    contents = [message["content"] for message in messages]
    if not any(isinstance(content, str) and content.strip() for content in contents):
        raise BadCell(column, shown(contents), "it is empty", "at least one message with content")
    return messages


def _bad_prompt(column: str, cell: object) -> BadCell:
    allowed = 'text, or a list of messages such as {"role": "user", "content": "3 + 5"}'
    return BadCell(column, _typed(cell), "neither text nor messages", allowed)


def _typed(cell: object) -> str:
    return f"{type(cell).__name__} {shown(cell)}"


def _message(cell: object, column: str, *, calls: bool) -> dict[str, Json]:
    if not isinstance(cell, dict):
        raise _bad_prompt(column, cell)
    # In parquet every struct has the fields of all structs; null means absent.
    message = {key: value for key, value in cell.items() if value is not None}
    if calls and message.get("tool_calls"):
        message.setdefault("content", "")  # may be absent in OpenAI's form
    if "role" not in message or "content" not in message:
        got = f"a message with {', '.join(map(str, message)) or 'nothing'}"
        why, allowed = "a message has a role and content", '{"role": "user", "content": "..."}'
        raise BadCell(column, got, why, allowed)
    role, content = message["role"], message["content"]
    if role not in ROLES:
        allowed = f"one of {', '.join(ROLES)}"
        raise BadCell(f"{column}.role", shown(role), "unknown role", allowed)
    if not isinstance(content, str):
        why, allowed = "the content of a message is text", "text; images and audio are not read"
        raise BadCell(f"{column}.content", _typed(content), why, allowed)
    return mapping_of(message, column)


def _ground_truth(cell: object) -> Json:
    if cell is None:
        return None
    if not isinstance(cell, dict):
        allowed = '{"style": "rule", "ground_truth": ...}'
        raise BadCell(REWARD_COLUMN, _typed(cell), "it holds the ground truth", allowed)
    return as_json(cell.get("ground_truth"), GROUND_TRUTH)


def mapping_of(cell: object, column: str) -> dict[str, Json]:
    """Read a struct as JSON; empty for an empty cell."""
    if cell is None:
        return {}
    if not isinstance(cell, Mapping):
        allowed = "a struct, or an object in JSON lines"
        raise BadCell(column, _typed(cell), "it holds named values", allowed)
    return {str(key): as_json(value, f"{column}.{key}") for key, value in cell.items()}


def as_json(value: object, column: str) -> Json:
    """Convert a cell to JSON, the form for reward functions, templates and sample files."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case float():
            raise BadCell(column, repr(value), "not a number", "finite numbers")
        case decimal.Decimal():
            return as_json(float(value), column)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            return [as_json(item, column) for item in value]
        case Mapping():
            return mapping_of(value, column)
    allowed = "text, numbers, booleans, lists and structs"
    raise BadCell(column, _typed(value), "a reward function gets JSON values", allowed)
