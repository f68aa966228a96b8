"""Published datasets, converted row by row to verl's columns and prompts.

GSM8K, MATH, DAPO-Math-17k and AIME, and the questions of Search-R1. Readers raise `ConfigError` for
a file that cannot be read, or a row that is not of the dataset.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from ppojob_trainer.data.columns import INTERACTION
from ppojob_trainer.data.file_checks import open_row_file
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

_GSM8K = "openai/gsm8k"
_SAY_NUMBER = 'Let\'s think step by step and output the final answer after "####".'
_SOLUTION = re.compile(r"#### (-?[0-9.,]+)")
_MATH = "DigitalLearningGmbH/MATH-lighteval"
_BOX_ANSWER = r"Let's think step by step and output the final answer within \boxed{}."
DAPO_SOURCE = "math_dapo"
AIME_SOURCE = "aime"
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
_PROBLEMS = ("prompt", "problem", "Problem", "question", "Question")
_ANSWERS = ("answer", "Answer", "solution")
SearchForm = Literal["direct", "search"]
_SEARCH_PREFIX = "searchR1_"
PROMPTS: dict[SearchForm, str] = {
    "direct": "Answer the given question. Reason inside <think> and </think> first, and then give "
    "the answer inside <answer> and </answer>, without detailed illustrations. For example, "
    "<answer> Beijing </answer>. Question: ",
    "search": "Answer the given question. You must conduct reasoning inside <think> and </think> "
    "first every time you get new information. After reasoning, if you find you lack some "
    "knowledge, you can call a search engine by <search> query </search> and it will return the "
    "top searched results between <information> and </information>. You can search as many times "
    "as your want. If you find no further external knowledge needed, you can directly provide the "
    "answer inside <answer> and </answer>, without detailed illustrations. For example, <answer> "
    "Beijing </answer>. Question: ",
}
"""`search` is Search-R1's prompt (table 1 of the paper, as in its scripts), for models with a
search engine; `direct` needs none."""


def _rows(path: Path) -> Iterator[tuple[Row, str]]:
    """Read a file row by row, each with its place."""
    opened = open_row_file(str(path))
    if isinstance(opened, DataProblem):
        raise ConfigError(str(opened))
    try:
        for number, row in enumerate(opened.rows()):
            if isinstance(row, DataProblem):
                raise ConfigError(str(row))
            yield row, opened.place(number)
    finally:
        opened.close()


def _text_of(row: Row, column: str, place: str, data_set: str) -> str:
    """Return the text in a column, or raise a ConfigError."""
    cell = row.get(column)
    if not isinstance(cell, str) or not cell.strip():
        raise ConfigError(f"{place}:{column}: got {cell!r}: not a problem of {data_set}; text")
    return cell


def gsm8k_rows(path: Path, *, with_user: bool = False) -> Iterator[TaskRow]:
    """Read problems of GSM8K one by one (Cobbe et al. 2021, arXiv:2110.14168).

    A row has a "question", and an "answer" that ends in "#### n". With a user, each row also names
    the user simulator `gsm8k`, with the solution.
    """
    for row, place in _rows(path):
        question, answer = (_text_of(row, name, place, "GSM8K") for name in ("question", "answer"))
        solution = _SOLUTION.search(answer)
        if solution is None:
            raise ConfigError(
                f"{place}:answer: got {answer[-40:]!r}: no solution at the end; an answer that ends"
                ' in "#### 72"'
            )
        prompt, truth = f"{question} {_SAY_NUMBER}", solution.group(1).replace(",", "")
        info: dict[str, Json] = {"answer": answer, "question": question}
        if with_user:
            info[INTERACTION] = {"name": "gsm8k", "query": prompt, "ground_truth": truth}
        yield TaskRow(_GSM8K, [{"role": "user", "content": prompt}], truth, extra_info=info)


def math_rows(path: Path, boxed_answer: Callable[[str], str | None]) -> Iterator[TaskRow]:
    """Read problems of MATH one by one (Hendrycks et al. 2021, arXiv:2103.03874).

    A row has a "problem", and a "solution" with a boxed answer, which `boxed_answer` extracts as
    the scorer does.
    """
    for row, place in _rows(path):
        problem, solution = (_text_of(row, name, place, "MATH") for name in ("problem", "solution"))
        answer = boxed_answer(solution)
        if not (answer or "").strip():
            raise ConfigError(
                f"{place}:solution: got {solution[-40:]!r}: no answer in it; a solution with "
                "\\boxed{...}"
            )
        content = f"{problem} {_BOX_ANSWER}"
        yield TaskRow(_MATH, [{"role": "user", "content": content}], answer)


def problem_rows(path: Path, data_source: str) -> Iterator[TaskRow]:
    """Read problems of DAPO-Math-17k or AIME one by one, without duplicates.

    Yu et al. 2025, arXiv:2503.14476, with DAPO's prompt. A file has verl's columns, or a problem
    and its answer under one of several column names.
    """
    seen = set[str]()
    for row, place in _rows(path):
        task = _dapo_row(row, place, data_source)
        if (key := json.dumps(task.prompt)) not in seen:
            seen.add(key)
            yield task


def _dapo_row(row: Row, place: str, data_source: str) -> TaskRow:
    column = next((name for name in _PROBLEMS if row.get(name)), "")
    problem, answer = row.get(column), _answer(row)
    if answer is None or not isinstance(problem, str | list):
        found = ", ".join(map(str, row)) or "nothing"
        raise ConfigError(
            f"{place}: got columns {found}: no problem with its answer; verl's prompt and "
            "reward_model.ground_truth, or a problem or question with its answer"
        )
    prompt: list[dict[str, str]]
    if isinstance(problem, str):
        prompt = [{"role": "user", "content": f"{_DAPO_BEFORE}{problem.strip()}{_DAPO_AFTER}"}]
    else:
        prompt = [{"role": one["role"], "content": one["content"]} for one in problem]
    return TaskRow(data_source, prompt, answer, ability="MATH", extra_info=_numbered(row))


def _answer(row: Row) -> str | None:
    """Return the answer as text, integers without leading zeros: AIME prints 025."""
    model = row.get("reward_model")
    answers = [model.get("ground_truth")] if isinstance(model, dict) else []
    answers += [row.get(name) for name in _ANSWERS]
    for answer in answers:
        text = str(answer).strip() if isinstance(answer, str | int) else ""
        if text:
            return str(int(text)) if text.isdecimal() else text
    return None


def _numbered(row: Row) -> dict[str, Json]:
    """Return the index or the id of a problem, for extra_info."""
    info = row.get("extra_info")
    if isinstance(info, dict) and "index" in info:
        return {"index": info["index"]}
    name = next((row[key] for key in ("id", "ID") if isinstance(row.get(key), str | int)), None)
    return {} if name is None else {"id": str(name)}


def search_r1_rows(path: Path, data_source: str, form: SearchForm) -> Iterator[TaskRow]:
    """Read questions of Search-R1 one by one (Jin et al. 2025, arXiv:2503.09516).

    Rows of nq_hotpotqa and of FlashRAG's datasets: "id", "question" and "golden_answers". Rows
    without a data source get the given one.
    """
    for row, place in _rows(path):
        question = _text_of(row, "question", place, "Search-R1").strip()
        question += "" if question.endswith("?") else "?"
        source = str(row.get("data_source") or data_source).removeprefix(_SEARCH_PREFIX)
        answers, name = row.get("golden_answers"), row.get("id")
        given = answers if isinstance(answers, list) else []
        if not given or not all(isinstance(one, str) and one.strip() for one in given):
            raise ConfigError(
                f"{place}:golden_answers: got {answers!r}: no known answers; a list of texts"
            )
        yield TaskRow(
            f"{_SEARCH_PREFIX}{source}",
            [{"role": "user", "content": f"{PROMPTS[form]}{question}"}],
            {"target": given},
            ability="fact-reasoning",
            extra_info={"question": question, **({} if name is None else {"id": str(name)})},
        )
