"""`ppojob data`: prompts in verl's columns, made or converted on this machine."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click

from ppojob_cli.input_error import InputError, told

if TYPE_CHECKING:
    from ppojob_trainer.data.generate import Task
    from ppojob_trainer.data.prompt_files import TaskRow

P = ParamSpec("P")

_output = click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for train.parquet and test.parquet.",
)
_seed = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Of items and order."
)
_form = click.option(
    "--prompt-form",
    "form",
    default="chat",
    show_default=True,
    type=click.Choice(["chat", "base"]),
    help="Messages for a chat model, or text for a base model.",
)


def _rows(default: int | None) -> Callable[[Callable[P, None]], Callable[P, None]]:
    return click.option(
        "--rows",
        default=default,
        show_default=default is not None,
        type=click.IntRange(1),
        help="Training rows." if default else "Training rows at most; all without it.",
    )


def _validation_rows(default: int) -> Callable[[Callable[P, None]], Callable[P, None]]:
    return click.option(
        "--validation-rows",
        "held_out",
        default=default,
        show_default=True,
        type=click.IntRange(1),
        help="Held-out rows, none of them among the training rows.",
    )


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
    show_default=True,
    type=click.IntRange(1, 9),
    help="Of each number; of more than one, 10,000 rows without --rows.",
)
def addition(output: Path, **options: Any) -> None:
    """Sums of three digits, after one worked example: the task of the demo."""
    from ppojob_trainer.data import generate

    _make(output, generate.addition, options)


@data.command()
@_output
@_rows(10_000)
@_validation_rows(512)
@_seed
@_form
@click.option(
    "--operands",
    nargs=2,
    default=(3, 4),
    show_default=True,
    type=click.IntRange(2, 8),
    metavar="MIN MAX",
    help="How many numbers an item has.",
)
@click.option("--max-number", default=100, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--max-target", default=100, show_default=True, type=click.IntRange(1, 100_000))
def countdown(output: Path, operands: tuple[int, int], **options: Any) -> None:
    """Reach a target with given numbers (TinyZero); every item has a solution."""
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
@_form
@click.option("--digits", default=2, show_default=True, type=click.IntRange(1, 12))
def multiply(output: Path, **options: Any) -> None:
    """Products of two numbers (TinyZero)."""
    from ppojob_trainer.data import generate

    _make(output, generate.multiply, options)


@data.command()
@_output
@click.option(
    "--facts",
    default=5_000,
    show_default=True,
    type=click.IntRange(2),
    help="Documents of the corpus, a fact each.",
)
@_rows(None)
@_validation_rows(500)
@_seed
def facts(output: Path, **options: Any) -> None:
    """A corpus of made-up facts to search in, corpus.jsonl, and questions about them."""
    from ppojob_trainer.data.facts import facts, write_corpus

    with told():
        corpus, questions = facts(**options)
        path = write_corpus(output, corpus)
    click.echo(f"{path}: {len(corpus)} documents")
    _write(output, questions.train, questions.held_out)


_input = click.option(
    "--input",
    "source",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder with train and test as .jsonl or .parquet.",
)


@data.command()
@_output
@_input
def gsm8k(output: Path, source: Path) -> None:
    """GSM8K from local files, in verl's columns and wording."""
    from ppojob_trainer.data.gsm8k_files import gsm8k_rows

    train, test = _splits(source, "GSM8K")
    _write(output, gsm8k_rows(train), gsm8k_rows(test))


@data.command()
@_output
@_input
def math(output: Path, source: Path) -> None:
    """MATH from local files (problem and solution), in verl's columns and wording."""
    from ppojob_trainer.data.math_files import math_rows
    from ppojob_trainer.rewards.math_reward import boxed_answer

    train, test = _splits(source, "MATH")
    _write(output, math_rows(train, boxed_answer), math_rows(test, boxed_answer))


def _splits(source: Path, data_set: str) -> tuple[Path, Path]:
    from ppojob_trainer.data.published_files import source_file

    train, test = source_file(source, "train"), source_file(source, "test")
    if train is None or test is None:
        missing = "train" if train is None else "test"
        raise InputError(
            f"{source}: got no {missing}.jsonl or {missing}.parquet: {data_set} is read from both "
            "splits; the folder of its files"
        )
    return train, test


def _make(output: Path, task: "Callable[..., Task]", options: dict[str, Any]) -> None:
    with told():
        made = task(**options)
    _write(output, made.train, made.held_out)


def _write(output: Path, train: "Iterable[TaskRow]", test: "Iterable[TaskRow]") -> None:
    from ppojob_trainer.data.prompt_files import write_splits

    with told():
        written = write_splits(output, {"train": train, "test": test})
    for path, count in written.items():
        click.echo(f"{path}: {count} rows")
