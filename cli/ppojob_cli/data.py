"""`ppojob data`: generates or converts prompts in verl's columns."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppojob_api.problem import counted
from ppojob_cli.input_error import InputError
from ppojob_cli.options import FOLDER

if TYPE_CHECKING:
    from ppojob_trainer.data.generate import Task
    from ppojob_trainer.data.prompt_files import TaskRow
    from ppojob_trainer.data.published_files import SearchForm

_output = click.option(
    "--output",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Output folder for train.parquet, test.parquet, or both.",
)
_seed = click.option("--seed", default=0, type=click.IntRange(0), help="Seed of items and order.")


Option = Callable[[Callable[..., None]], Callable[..., None]]


def _rows(default: int | None) -> Option:
    return click.option(
        "--rows",
        default=default,
        type=click.IntRange(1),
        help="Training rows." if default else "Largest number of training rows; default: all.",
    )


def _validation_rows(default: int) -> Option:
    return click.option(
        "--validation-rows",
        "held_out",
        default=default,
        type=click.IntRange(1),
        help="Held-out rows, none of them among the training rows.",
    )


def _prompt_form(forms: list[str], text: str) -> Option:
    """Make the option that chooses between forms of prompts; the first is the default."""
    kind = click.Choice(forms)
    return click.option("--prompt-form", "form", default=forms[0], type=kind, help=text)


def _input(text: str, **settings: bool) -> Option:
    kind = click.Path(path_type=Path, **settings)
    return click.option("--input", "source", required=True, type=kind, help=text)


def _data_source(default: str, text: str) -> Option:
    return click.option("--data-source", default=default, help=text)


_folder_of_splits = _input(
    "Folder with train and test as .jsonl or .parquet, or in the hub's parts: train-*.parquet."
)
_file = _input("The file, .jsonl, .json or .parquet.", exists=True, dir_okay=False)


@click.group()
def data() -> None:
    """Make prompts to train on."""


@data.command()
@_output
@_rows(None)
@_validation_rows(64)
@_seed
@click.option(
    "--digits",
    default=1,
    type=click.IntRange(1, 9),
    help="Digits of each number; with more than one, 10,000 rows by default.",
)
def addition(output: Path, **options: Any) -> None:
    """Sums of three digits after a worked one: the demo's task."""
    from ppojob_trainer.data import generate

    _make(output, generate.addition, options)


@data.command()
@_output
@_rows(10_000)
@_validation_rows(512)
@_seed
@_prompt_form(["chat", "base"], "Messages for a chat model, or text for a base model.")
@click.option(
    "--operands",
    nargs=2,
    default=(3, 4),
    type=click.IntRange(2, 8),
    metavar="MIN MAX",
    help="How many numbers an item has.",
)
@click.option("--max-number", default=100, type=click.IntRange(1, 10_000))
@click.option("--max-target", default=100, type=click.IntRange(1, 100_000))
def countdown(output: Path, operands: tuple[int, int], **options: Any) -> None:
    """Reach a target with given numbers (TinyZero).

    Every item has a solution.
    """
    from ppojob_trainer.data import generate

    if operands[0] > operands[1]:
        raise InputError(
            f"--operands: got {operands[0]} {operands[1]}: the first is larger; MIN, then MAX"
        )
    _make(output, generate.countdown, {**options, "operands": operands})


@data.command()
@_output
@_rows(4_000)
@_validation_rows(50)
@_seed
@_prompt_form(
    ["chat", "base", "calculator"],
    "Messages for a chat model, text for a base model, or messages that begin with worked "
    "calls of the tool calculator, in the format hermes: those trained on with two or one, those "
    "held out with one.",
)
@click.option("--digits", default=2, type=click.IntRange(1, 12))
def multiply(output: Path, **options: Any) -> None:
    """Products of two numbers (TinyZero)."""
    from ppojob_trainer.data import generate

    _make(output, generate.multiply, options)


@data.command()
@_output
@click.option(
    "--facts", default=5_000, type=click.IntRange(2), help="Documents of the corpus, a fact each."
)
@_rows(None)
@_validation_rows(500)
@_seed
@_prompt_form(
    ["instruction", "worked"],
    "Search-R1's own words; or worked searches before the question, for small models: two or "
    "one of those trained on, one of those held out, which answers another kind of question.",
)
def facts(output: Path, **options: Any) -> None:
    """Made-up facts to search in, and questions about them.

    The facts are written to corpus.jsonl.
    """
    from ppojob_trainer.data.facts import facts, write_corpus

    corpus, questions = facts(**options)
    path = write_corpus(output, corpus)
    click.echo(f"{path}: {len(corpus)} documents")
    _write(output, train=questions.train, test=questions.held_out)


@data.command()
@_output
@_folder_of_splits
@click.option(
    "--with-user", is_flag=True, help="Rows name the user simulator gsm8k, with the answer."
)
def gsm8k(output: Path, source: Path, with_user: bool) -> None:
    """GSM8K from local files, in verl's columns and wording."""
    from ppojob_trainer.data.published_files import gsm8k_rows

    _convert(output, source, "GSM8K", lambda path: gsm8k_rows(path, with_user=with_user))


@data.command()
@_output
@_folder_of_splits
def math(output: Path, source: Path) -> None:
    """MATH from local files, in verl's columns and wording.

    The files have the columns problem and solution.
    """
    from ppojob_trainer.data.published_files import math_rows
    from ppojob_trainer.rewards.math_reward import boxed_answer

    _convert(output, source, "MATH", lambda path: math_rows(path, boxed_answer))


@data.command()
@_output
@_folder_of_splits
@_data_source("nq", "Data source of rows without that column; the prefix searchR1_ is added.")
@_prompt_form(
    ["direct", "search"],
    "search: Search-R1's own words, for a policy that has a search engine.",
)
def searchr1(output: Path, source: Path, data_source: str, form: "SearchForm") -> None:
    """Search-R1's questions from local files, such as nq_hotpotqa.

    The files have the columns question and golden_answers.
    """
    from ppojob_trainer.data.published_files import search_r1_rows

    _convert(output, source, "Search-R1", lambda path: search_r1_rows(path, data_source, form))


@data.command("dapo-math")
@_output
@_file
def dapo_math(output: Path, source: Path) -> None:
    """DAPO-Math-17k from a local file, each problem once.

    Writes train.parquet alone.
    """
    from ppojob_trainer.data.published_files import DAPO_SOURCE, problem_rows

    _write(output, train=problem_rows(source, DAPO_SOURCE))


@data.command()
@_output
@_file
@_data_source("aime", "Data source, to separate years in validation metrics: aime2024.")
def aime(output: Path, source: Path, data_source: str) -> None:
    """AIME from a local file, in DAPO's wording.

    Writes each problem once, into test.parquet alone. Ask for several responses of each with
    spec.rollout.validation.samples.
    """
    from ppojob_trainer.data.published_files import AIME_SOURCE, problem_rows

    if not data_source.startswith(AIME_SOURCE):
        raise InputError(
            f"--data-source: got {data_source}: its scorer is chosen by its prefix; a name that "
            f"begins with {AIME_SOURCE}"
        )
    _write(output, test=problem_rows(source, data_source))


@data.command()
@click.argument("source", metavar="FOLDER|HUB_ID")
@click.option(
    "--output", type=FOLDER, metavar="DIR", help="Folder for what is fetched from the hub."
)
@click.option(
    "--files",
    "pattern",
    default="*",
    metavar="PATTERN",
    help="Which files of the repository: data/train-*.",
)
def hf(source: str, output: Path | None, pattern: str) -> None:
    """Fetch a data set of the hub, and list its columns.

    Nothing is converted: spec.data reads the files, with promptKey, answerKey and dataSource.
    """
    from ppojob_cli.hub_data import described, fetched

    folder = Path(source)
    if not folder.is_dir():
        folder = fetched(source, output, pattern)
    for line in described(folder):
        click.echo(line)


def _convert(
    output: Path, source: Path, data_set: str, rows_of: "Callable[[Path], Iterator[TaskRow]]"
) -> None:
    """Convert both splits of a data set: ``train.jsonl``, ``test-00000-of-00001.parquet``, ..."""
    found = {}
    for split in ("train", "test"):
        files = (source / f"{split}{ending}" for ending in (".jsonl", ".parquet", ".json"))
        whole = [path for path in files if path.is_file()][:1]
        paths = whole or sorted(source.glob(f"{split}-*.parquet"))
        if not paths:
            raise InputError(
                f"{source}: got no {split}.jsonl, {split}.parquet or {split}-*.parquet: {data_set} "
                "is read from both splits; the folder of its files"
            )
        found[split] = chain.from_iterable(map(rows_of, paths))
    _write(output, **found)


def _make(output: Path, task: "Callable[..., Task]", options: dict[str, Any]) -> None:
    made = task(**options)
    _write(output, train=made.train, test=made.held_out)


def _write(output: Path, **splits: "Iterable[TaskRow]") -> None:
    from ppojob_trainer.data.prompt_files import write_splits

    written = write_splits(output, splits)
    for path, count in written.items():
        click.echo(f"{path}: {counted(count, 'row')}")
