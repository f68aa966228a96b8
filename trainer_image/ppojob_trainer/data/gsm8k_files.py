"""GSM8K as its authors publish it, to verl's columns and wording.

Cobbe et al. 2021, arXiv:2110.14168: a "question", and an "answer" that ends in "#### n".
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ppojob_trainer.data.columns import ColumnNames
from ppojob_trainer.data.file_checks import open_row_file
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.data.row_file import BadRow, Row
from ppojob_trainer.errors import ConfigError

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_COLUMNS = ("question", "answer")
_SOLUTION = re.compile(r"#### (-?[0-9.,]+)")
_NAMES = ColumnNames("question", answer="answer", constant_source=DATA_SOURCE)
_ENDINGS = (".jsonl", ".parquet", ".json")


def source_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a folder: ``train.jsonl``, ``test.parquet`` and the like."""
    found = (folder / f"{split}{ending}" for ending in _ENDINGS)
    return next((path for path in found if path.is_file()), None)


def gsm8k_rows(path: Path) -> Iterator[TaskRow]:
    """Read problems one by one.

    Raises:
        ConfigError: the file, or one of its rows, is not GSM8K.
    """
    opened = open_row_file(str(path), "auto", _NAMES)
    if isinstance(opened, DataProblem):
        raise ConfigError(str(opened))
    try:
        for number, row in enumerate(opened.rows()):
            if isinstance(row, BadRow):
                raise ConfigError(str(row))
            yield _task_row(row, opened.place(number))
    finally:
        opened.close()


def _task_row(row: Row, place: str) -> TaskRow:
    question, answer = (_text(row, column, place) for column in _COLUMNS)
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


def _text(row: Row, column: str, place: str) -> str:
    cell = row.get(column)
    if not isinstance(cell, str) or not cell.strip():
        raise ConfigError(f"{place}:{column}: got {cell!r}: not a problem of GSM8K; text")
    return cell
