"""`ppojob evaluate`: scores responses of a run, or of verl's main_generation, without a model."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ppojob_api.problem import counted, printable, shown
from ppojob_api.run_layout import JOB_FILE
from ppojob_api.v1alpha1.rollout import RewardSource, RewardSpec, SandboxSpec
from ppojob_cli.input_error import InputError
from ppojob_cli.options import FILE, FOLDER
from ppojob_cli.progress_lines import ProgressLines

if TYPE_CHECKING:
    from ppojob_trainer.evaluation.answers import Answer
    from ppojob_trainer.rewards.records import RewardResult

_FUNCTION_FORM: Final = "FILE.py:NAME"
_OF_FUNCTION: Final = re.compile(r"spec\.rewards\[0\](\.function|\.source\.path)?")
_STATISTIC: Final = re.compile(r"(.+)/(([a-z]+)@([0-9]+)(?:/mean)?)")
_WORDS: Final = ("mean", "std", "best", "worst", "maj")


@dataclass(frozen=True)
class Rewards:
    """The reward functions to use."""

    # As in `spec.rewards`; empty for the scorer of each row's data source.
    specs: tuple[RewardSpec, ...] = ()
    sandbox: SandboxSpec | None = None  # settings for code of responses; None for the default
    description: str = "the built-in scorers of the data sources"  # for people
    is_function: bool = False  # whether they come from `--function`


@click.command()
@click.argument("rows", metavar="ROWS", type=click.Path(path_type=Path))
@click.option(
    "--job",
    type=FILE,
    metavar="FILE",
    help="Manifest with the spec.rewards and spec.sandbox to use; default: that of the run of "
    "ROWS, else the built-in reward function of each row's data source.",
)
@click.option("--function", metavar=_FUNCTION_FORM, help="The only reward function to use.")
@click.option("--kept", is_flag=True, help="Use the scores that the rows of a run already have.")
@click.option(
    "--processes",
    default=1,
    type=click.IntRange(1, 1_024),
    help="Child processes that score in parallel.",
)
@click.option(
    "--output",
    type=FOLDER,
    metavar="DIR",
    help="Folder for the numbers (evaluation.jsonl) and the scored rows (scored.parquet).",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per step instead of tables."
)
def evaluate(
    rows: Path,
    job: Path | None,
    function: str | None,
    kept: bool,
    processes: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Score responses, and print verl's validation numbers of them.

    ROWS are a file, a folder or a pattern of parquet or JSON lines: rows of a run (rollouts/,
    validation/), or of `ppojob generate` and verl's main_generation (columns responses,
    data_source, reward_model). For a run folder its validations are scored. Reward functions run as
    in a job; no model and no engine is loaded. A * marks the main metric (val-core) of a data
    source.

    Exit status: 0 done, 2 the input is wrong, 3 a reward function failed; nothing is written then.
    """
    from ppojob_trainer.evaluation.answers import read_answers
    from ppojob_trainer.evaluation.scoring import (
        evaluation_metrics,
        recorded_scores,
        write_evaluation,
    )

    if kept and (job is not None or function is not None):
        option = "--job" if function is None else "--function"
        raise InputError(f"--kept: got {option} too: both say what the scores are; one of them")
    rewards = Rewards() if kept else _rewards(rows, job, function)
    steps = read_answers(rows)
    results = {step: recorded_scores(answers) for step, answers in steps.items() if kept}
    if not kept:
        results = _scored(steps, rewards, processes)
    lines, is_starred = [], False
    for step, answers in steps.items():
        metrics = evaluation_metrics(answers, results[step])
        lines.append(metrics if step is None else {"step": step, **metrics})
        if as_json:
            click.echo(json.dumps(lines[-1]))
        else:
            table = "\n".join(_table(step, answers, metrics))
            is_starred |= "*" in table
            click.echo(table)
    if is_starred:
        click.echo("* main metric of its data source (val-core)", err=True)
    if output is not None:
        both = [pair for step in steps for pair in zip(steps[step], results[step], strict=True)]
        write_evaluation(output, lines, both)
        click.echo(f"{output}: {counted(len(both), 'scored row')}", err=True)


def _rewards(rows: Path, job: Path | None, function: str | None) -> Rewards:
    if function is not None:
        if job is not None:
            raise InputError("--function: got --job too: both say what scores; one of them")
        file, _, name = function.rpartition(":")
        if not file or not name:
            raise InputError(f"--function: got {shown(function)}: no function; {_FUNCTION_FORM}")
        source = RewardSource(path=file)
        own = RewardSpec(function=name, source=source)
        return Rewards((own,), description=function, is_function=True)
    manifest = job or _job_of(rows)
    if manifest is None:
        return Rewards()
    from ppojob_cli.job_file import load_job

    spec = load_job(manifest).spec
    for field, model in (("rewardModel", spec.reward_model), ("judge", spec.judge)):
        if model is not None:
            raise InputError(
                f"{manifest}: got spec.{field} {shown(model.path)}: no model is loaded "
                "here; --kept for the scores of the run, or --function"
            )
    scorers = f"spec.rewards of {manifest}" if spec.rewards else Rewards.description
    return Rewards(spec.rewards, spec.sandbox, scorers)


def _job_of(rows: Path) -> Path | None:
    """Return the manifest of the run whose row folders contain the rows, if there is one."""
    from ppojob_trainer.controller.row_tape import ROW_FOLDERS

    within = [one.parent for one in (rows, *rows.parents) if one.name in ROW_FOLDERS.values()]
    if any((rows / name).is_dir() for name in ROW_FOLDERS.values()):
        within.append(rows)
    found = (folder / JOB_FILE for folder in within)
    return next((manifest for manifest in found if manifest.is_file()), None)


def _scored(
    steps: "Mapping[int | None, list[Answer]]", rewards: Rewards, processes: int
) -> "dict[int | None, list[RewardResult]]":
    from ppojob_trainer.errors import ConfigError, RewardFailed
    from ppojob_trainer.evaluation.scoring import check_answers, score_answers
    from ppojob_trainer.pod_environment import variables_of_code
    from ppojob_trainer.rewards.process import ScoringPool
    from ppojob_trainer.rewards.row_checks import row_checks

    every = [answer for answers in steps.values() for answer in answers]
    checks = row_checks(rewards.specs)
    if checks is not None:  # else a function may take any rows
        check_answers(every, checks)
    lines, done, variables = ProgressLines(err=True), 0, variables_of_code("reward")

    def on_scored() -> None:
        nonlocal done
        done += 1
        lines.show(f"{done:,} of {len(every):,} scored")

    found: dict[int | None, list[RewardResult]] = {}
    try:
        with ScoringPool(
            rewards.specs, sandbox=rewards.sandbox, processes=processes, variables=variables
        ) as pool:
            click.echo(
                f"{counted(len(every), 'response')}, scored by {rewards.description}", err=True
            )
            for step, answers in steps.items():
                found[step] = score_answers(answers, pool, on_scored)
    except (ConfigError, RewardFailed) as problem:
        # Messages of the pool name the field of a job.
        told = _OF_FUNCTION.sub("--function", str(problem)) if rewards.is_function else str(problem)
        for line in told.splitlines():
            click.echo(printable(line), err=True)
        raise SystemExit(problem.exit_status) from None
    return found


def _table(
    step: int | None, answers: "Sequence[Answer]", metrics: Mapping[str, float]
) -> Iterator[str]:
    """Yield the metrics of a step: a block per data source, a line per statistic."""
    where = "" if step is None else f"step {step}, "
    for source in sorted({answer.data_source for answer in answers}):
        own = [answer for answer in answers if answer.data_source == source]
        prompts = len({answer.prompt for answer in own})
        yield f"{where}{source}: {counted(prompts, 'prompt')}, {counted(len(own), 'response')}"
        cells = _cells(source, metrics)
        variables = sorted({variable for variable, _ in cells})
        widths = [max(10, len(variable) + 2) for variable in variables]
        columns = list(zip(variables, widths, strict=True))
        yield "  " + " " * 16 + "".join(f"{variable:>{width}}" for variable, width in columns)
        for of in dict.fromkeys(of for _, of in cells):
            line = "".join(
                f"{cells.get((variable, of), ''):>{width}}" for variable, width in columns
            )
            yield f"  {of:<16}{line}".rstrip()
    turns = {name: value for name, value in metrics.items() if "/num_turns/" in name}
    yield from (f"  {name} {value:.4g}" for name, value in turns.items())


def _cells(source: str, metrics: Mapping[str, float]) -> dict[tuple[str, str], str]:
    """Format metrics by variable and statistic, with `*` after those of val-core."""
    found = dict[tuple[str, str], tuple[tuple[int, int], str]]()
    for name, value in metrics.items():
        kind, _, behind = name.partition(f"/{source}/")
        match = _STATISTIC.fullmatch(behind)
        if match is not None:
            variable, of, word, size = match.groups()
            place = _WORDS.index(word), int(size)
            found[variable, of] = place, f"{value:.4f}{'*' if kind == 'val-core' else ' '}"
    return {key: text for key, (_, text) in sorted(found.items(), key=lambda cell: cell[1][0])}
