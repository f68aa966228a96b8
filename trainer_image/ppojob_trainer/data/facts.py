"""Synthetic corpus of people, towns and trades, and questions about them.

The facts are invented, so no model knows them: a policy must search to answer.
"""

import itertools
import json
import random
from pathlib import Path
from typing import Final, Literal

from ppojob_trainer.data.generate import Task
from ppojob_trainer.data.prompt_files import TaskRow, writable
from ppojob_trainer.data.published_files import PROMPTS
from ppojob_trainer.errors import ConfigError

DATA_SOURCE: Final = "searchR1_facts"
CORPUS: Final = "corpus.jsonl"
FactForm = Literal["instruction", "worked"]

_STARTS: Final = (
    "ba bre da dro fe gri ha je ka kle lo ma mer no or pa que ra sha so ta tri ul ve wy za"
)
_ENDS: Final = "bin dar del fen gar lan len mir nok ran rik sen thal tor van vik wen xis yan zor"
_TOWN_ENDS: Final = "bridge combe field ford haven hollow mere moor stead wick"
_THINGS: Final = (
    "amber basalt bramble cinder copper dusk ember feather fog frost glass ivory lantern lichen"
    " marble mirror moss pearl quill rain reed ripple salt shadow shell smoke thistle thunder tide"
    " velvet"
)
_TRADES: Final = (
    "binder broker carver caster charmer diver farmer grinder keeper mender painter polisher reader"
    " sorter spinner tamer tuner weaver whistler wright"
)
_KINDS: Final = (
    ("Which town does {name} live in?", "{name} lives in the town of {answer}."),
    ("What is the trade of {name}?", "The trade of {name} is that of a {answer}."),
)
_WORKED: Final = (("Orla Finch", "Greywick"), ("Tobin Marsh", "cloud mender"))
"""A name and an answer of each kind, for worked examples; the names are in no corpus."""


def facts(
    *,
    facts: int = 5_000,
    rows: int | None = None,
    held_out: int = 500,
    seed: int = 0,
    form: FactForm = "instruction",
) -> tuple[list[dict[str, str]], Task]:
    """Generate a corpus with one fact per document, and a question about each fact.

    All names differ, so each question has one document. Without `rows`, all questions that are not
    held out are trained on. The form "instruction" is Search-R1's prompt. "worked" has worked
    searches before the question: one of the other kind before held-out rows and every second
    training row, one of each kind before the other training rows.
    """
    rows = facts - held_out if rows is None else rows
    names = [
        f"{first.capitalize()}{second} {third.capitalize()}{last}"
        for first, second, third, last in itertools.product(*(_STARTS.split(), _ENDS.split()) * 2)
    ]
    if facts > len(names):
        raise ConfigError(f"--facts: got {facts}: there are {len(names)} names; at most as many")
    if rows < 1 or rows + held_out > facts:
        got = f"{rows} and {held_out} held out"
        raise ConfigError(
            f"--rows: got {got}: there are {facts} facts; at least 1, and all at most {facts}"
        )
    chosen = random.Random(seed)
    towns = [f"{a.capitalize()}{b}" for a in _STARTS.split() for b in _TOWN_ENDS.split()]
    trades = [f"{a} {b}" for a in _THINGS.split() for b in _TRADES.split()]
    corpus, asked = [], []
    for number, name in enumerate(chosen.sample(names, facts)):
        kind = chosen.randrange(len(_KINDS))
        answer = chosen.choice((towns, trades)[kind])
        question, sentence = (form.format(name=name, answer=answer) for form in _KINDS[kind])
        corpus.append({"id": str(number), "contents": f'"{name}"\n{sentence}'})
        asked.append((question, answer, kind))
    chosen.shuffle(asked)
    train = [
        _row(*item, form, worked=1 + number % 2)
        for number, item in enumerate(asked[held_out : held_out + rows])
    ]
    return corpus, Task(train, [_row(*item, form, worked=1) for item in asked[:held_out]])


def write_corpus(folder: Path, corpus: list[dict[str, str]]) -> Path:
    """Write a corpus to the folder of its questions."""
    path = folder / CORPUS
    with writable(folder):
        path.write_text("".join(json.dumps(line) + "\n" for line in corpus))
    return path


def _row(question: str, answer: str, kind: int, form: FactForm, *, worked: int) -> TaskRow:
    prompt = [{"role": "user", "content": question}]
    if form == "instruction":
        prompt[0]["content"] = f"{PROMPTS['search']}{question}\n"
    else:
        shown = (1 - kind, kind)[:worked]  # the other kind first: the same kind could be copied
        searches = [_worked_search(_KINDS[other], _WORKED[other]) for other in shown]
        prompt = [*itertools.chain(*searches), *prompt]
    return TaskRow(
        DATA_SOURCE,
        prompt,
        {"target": [answer]},
        ability="fact-reasoning",
        extra_info={"question": question},
    )


def _worked_search(kind: tuple[str, str], fact: tuple[str, str]) -> list[dict[str, str]]:
    """Return a question that is answered by a search, in the format search_r1.

    The space before the answer keeps the line breaks before it one token, as in a rollout, where
    the search result is tokenised separately.
    """
    name, answer = fact
    question, found = (form.format(name=name, answer=answer) for form in kind)
    information = f'Doc 1(Title: "{name}") {found}'
    said = (
        f"<search>{name}</search>\n\n<information>{information}</information>\n\n"
        f" <answer>{answer}</answer>"
    )
    return [{"role": "user", "content": question}, {"role": "assistant", "content": said}]
