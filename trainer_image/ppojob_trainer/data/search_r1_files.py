"""Questions of Search-R1 as they are published, to verl's columns.

Jin et al. 2025, arXiv:2503.09516: nq_hotpotqa and the data sets of FlashRAG, with an "id", a
"question" and its "golden_answers".
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.data.published_files import task_rows, text_of
from ppojob_trainer.data.row_file import Row
from ppojob_trainer.errors import ConfigError

SearchForm = Literal["direct", "search"]
PREFIX = "searchR1_"
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
"""`search` is Search-R1's own (table 1 of the paper, as its scripts have it), for models that get a
search engine; `direct` needs none."""


def search_r1_rows(path: Path, data_source: str, form: SearchForm) -> Iterator[TaskRow]:
    """Read questions one by one.

    Args:
        path: of a split.
        data_source: of rows that have none of their own, such as "nq".
        form: what the model is asked to do.

    Raises:
        ConfigError: the file, or one of its rows, is no question with answers.
    """
    return task_rows(path, lambda row, place: _row(row, place, data_source, form))


def _row(row: Row, place: str, data_source: str, form: SearchForm) -> TaskRow:
    question = text_of(row, "question", place, "Search-R1").strip()
    question += "" if question.endswith("?") else "?"
    source = row.get("data_source") or data_source
    answers = row.get("golden_answers")
    if not isinstance(answers, list) or not answers or not all(map(_is_text, answers)):
        raise ConfigError(
            f"{place}:golden_answers: got {answers!r}: nothing to compare an answer with; a list "
            "of texts"
        )
    name = row.get("id")
    return TaskRow(
        f"{PREFIX}{str(source).removeprefix(PREFIX)}",
        [{"role": "user", "content": f"{PROMPTS[form]}{question}"}],
        {"target": answers},
        ability="fact-reasoning",
        extra_info={"question": question, **({} if name is None else {"id": str(name)})},
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
