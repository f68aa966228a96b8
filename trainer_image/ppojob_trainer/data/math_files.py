"""MATH as its authors publish it, to verl's columns and wording.

Hendrycks et al. 2021, arXiv:2103.03874: a "problem", and a "solution" with the answer in a box.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.data.published_files import task_rows, text_of
from ppojob_trainer.data.row_file import Row
from ppojob_trainer.errors import ConfigError

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
INSTRUCTION = r"Let's think step by step and output the final answer within \boxed{}."


def math_rows(path: Path, boxed_answer: Callable[[str], str | None]) -> Iterator[TaskRow]:
    """Read problems one by one.

    Args:
        path: of a split.
        boxed_answer: finds the answer in a solution, as the scorer does in a response.

    Raises:
        ConfigError: the file, or one of its rows, is not MATH.
    """

    def row_of(row: Row, place: str) -> TaskRow:
        problem, solution = (text_of(row, name, place, "MATH") for name in ("problem", "solution"))
        answer = boxed_answer(solution)
        if not (answer or "").strip():
            raise ConfigError(
                f"{place}:solution: got {solution[-40:]!r}: no answer in it; a solution with "
                "\\boxed{...}"
            )
        content = f"{problem} {INSTRUCTION}"
        return TaskRow(DATA_SOURCE, [{"role": "user", "content": content}], answer)

    return task_rows(path, row_of)
