"""DAPO-Math-17k and AIME as they are published, to verl's columns and DAPO's wording.

Yu et al. 2025, arXiv:2503.14476. Both are found in verl's columns already, each problem many times
over, and as a problem with its answer, under several names of columns.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.data.published_files import task_rows
from ppojob_trainer.data.row_file import Row
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

DAPO_SOURCE = "math_dapo"
AIME_SOURCE = "aime"
_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
_PROBLEMS = ("prompt", "problem", "Problem", "question", "Question")
_ANSWERS = ("answer", "Answer", "solution")
_COLUMNS = "verl's prompt and reward_model.ground_truth, or a problem or question with its answer"


def problem_rows(path: Path, data_source: str) -> Iterator[TaskRow]:
    """Read problems one by one, each once however often the file has it.

    Args:
        path: the file.
        data_source: routes all of them to their reward.

    Raises:
        ConfigError: the file, or one of its rows, is no problem with an answer.
    """
    seen = set[str]()
    rows = task_rows(path, lambda row, place: _task_row(row, place, data_source))
    for row in rows:
        key = json.dumps(row.prompt)
        if key not in seen:
            seen.add(key)
            yield row


def _task_row(row: Row, place: str, data_source: str) -> TaskRow:
    column = next((name for name in _PROBLEMS if row.get(name)), "")
    problem, answer = row.get(column), _answer(row)
    if answer is None or not isinstance(problem, str | list):
        found = ", ".join(map(str, row)) or "nothing"
        raise ConfigError(f"{place}: got columns {found}: no problem with its answer; {_COLUMNS}")
    prompt: list[dict[str, str]]
    if isinstance(problem, str):
        prompt = [{"role": "user", "content": f"{_BEFORE}{problem.strip()}{_AFTER}"}]
    else:
        prompt = [{"role": one["role"], "content": one["content"]} for one in problem]
    return TaskRow(data_source, prompt, answer, ability="MATH", extra_info=_named(row))


def _answer(row: Row) -> str | None:
    """The answer as text, integers without zeros before them: AIME prints 025."""
    model = row.get("reward_model")
    told = [model.get("ground_truth")] if isinstance(model, dict) else []
    told += [row.get(name) for name in _ANSWERS]
    for answer in told:
        text = str(answer).strip() if isinstance(answer, str | int) else ""
        if text:
            return str(int(text)) if text.isdecimal() else text
    return None


def _named(row: Row) -> dict[str, Json]:
    """What tells the problem from others: the original's index, or its number."""
    info = row.get("extra_info")
    if isinstance(info, dict) and "index" in info:
        return {"index": info["index"]}
    name = next((row[key] for key in ("id", "ID") if isinstance(row.get(key), str | int)), None)
    return {} if name is None else {"id": str(name)}
