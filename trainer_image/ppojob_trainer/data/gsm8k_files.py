"""GSM8K as its authors publish it, to verl's columns and wording.

Cobbe et al. 2021, arXiv:2110.14168: a "question", and an "answer" that ends in "#### n".
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ppojob_trainer.data.columns import INTERACTION
from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.data.published_files import task_rows, text_of
from ppojob_trainer.data.row_file import Row
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_COLUMNS = ("question", "answer")
_SOLUTION = re.compile(r"#### (-?[0-9.,]+)")


def gsm8k_rows(path: Path, *, with_user: bool = False) -> Iterator[TaskRow]:
    """Read problems one by one.

    Args:
        path: the file.
        with_user: whether a row tells the user `gsm8k` who answers the model, as in verl.

    Raises:
        ConfigError: the file, or one of its rows, is not GSM8K.
    """
    rows = task_rows(path, _task_row)
    return map(_with_user, rows) if with_user else rows


def _with_user(row: TaskRow) -> TaskRow:
    query = f"{row.extra_info['question']} {INSTRUCTION}"
    told: Json = {"name": "gsm8k", "query": query, "ground_truth": row.ground_truth}
    return replace(row, extra_info={**row.extra_info, INTERACTION: told})


def _task_row(row: Row, place: str) -> TaskRow:
    question, answer = (text_of(row, column, place, "GSM8K") for column in _COLUMNS)
    solution = _SOLUTION.search(answer)
    if solution is None:
        raise ConfigError(
            f"{place}:answer: got {answer[-40:]!r}: no solution at its end; an answer that ends in "
            '"#### 72"'
        )
    return TaskRow(
        DATA_SOURCE,
        [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        solution.group(1).replace(",", ""),
        extra_info={"answer": answer, "question": question},
    )
