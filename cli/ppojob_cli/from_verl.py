"""`ppojob from-verl`: converts a script, configuration or command line of verl to a PPOJob."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from pydantic import JsonValue

from ppojob_api import contract
from ppojob_api.manifest import to_yaml
from ppojob_api.problem import ABSENT, Problem, ReasonCode, printable, shown
from ppojob_api.well_known import KIND
from ppojob_cli.input_error import InputError, output_errors
from ppojob_cli.options import FILE
from ppojob_cli.verl import trainers, unread
from ppojob_cli.verl.conversions import convert
from ppojob_cli.verl.draft import Draft, Fate
from ppojob_cli.verl.settings import Given, Settings, of_overrides, of_yaml, read_text

_YAML: Final = (".yaml", ".yml")
_QUIET: Final = (Fate.WRITTEN, Fate.UNNEEDED, Fate.SAME, Fate.IDLE)
_WARNED: Final = (Fate.NOTED, Fate.LEFT_OUT)
_SHOWN: Final = 6  # keys that one line of warning names

_SETTING: Final = re.compile(r"(\+\+|\+|~)?[\w.@/-]+=.*|~[\w.@/-]+", re.DOTALL)
_VARIABLE: Final = re.compile(r"(\w+)=(.*)", re.DOTALL)
_LOOPBACK: Final = re.compile(r"https?://(?:127\.0\.0\.1|localhost)[^\s'\"]*")
_MAIN: Final = "verl.trainer.main_ppo"
Comment = Callable[[str], Iterable[str]]


@click.command("from-verl", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, metavar="[SCRIPT|YAML] [KEY=VALUE]...")
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment of the script, by default only HOME; 1=VALUE is $1. The variable of"
    " a for loop chooses one pass. Repeatable.",
)
@click.option(
    "--of",
    "fork",
    type=click.Choice(["tinyzero"]),
    help="A fork of verl with other defaults. Search-R1's scripts are recognised by their keys.",
)
@click.option("--output", type=FILE, metavar="FILE", help="Output file.")
@click.option("--verbose", is_flag=True, help="Report what became of every key.")
@click.option("--plain", is_flag=True, help="No comments in the manifest.")
def from_verl(
    arguments: tuple[str, ...],
    variables: tuple[str, ...],
    fork: str | None,
    output: Path | None,
    *,
    verbose: bool,
    plain: bool,
) -> None:
    """Convert a verl script, YAML or KEY=VALUE to a PPOJob.

    A script calls main_ppo, main_dapo, main_prime, main_flowrl, gvpo_main_ppo, spo_main_ppo,
    sft_trainer, fully_async_main, one_step_off_policy, partial_rollout or main_generation_server.
    The script is parsed, not run, as if called in the folder where the job will run. Assignments,
    arrays, defaults, conditions on known values and the YAML of --config-name are evaluated; values
    that only a run could know are reported with their line. KEY=VALUE override the script. Only
    fields that differ from a PPOJob's defaults are written, each with its verl key; verl's own
    defaults are kept. Keys that cannot be converted are reported line by line: as a warning if no
    number depends on them, else with status 3. docs/from-verl.md lists all keys.
    """
    if output is not None and str(output) in arguments[:1]:
        raise InputError(f"--output: got {shown(str(output))}: it is what is read; another file")
    source, settings, problems = _read(list(arguments), variables)
    if fork and trainers.of_keys(settings.given, settings.trainer) != trainers.MAIN_PPO:
        why = f"{source} is for another trainer"
        raise InputError(
            f"--of: got {shown(fork)}: {why}; settings of main_ppo, without Search-R1's"
        )
    settings.trainer = trainers.TINY_ZERO if fork else settings.trainer
    job = convert(settings)
    errors = [*map(str, problems), *map(str, settings.problems), *_lines(job, settings)]
    for problem in job.problems:
        origins = ", ".join(job.origins(problem.where))
        errors.append(f"{problem} (of {origins})" if origins else str(problem))
    if verbose:
        for line in _lines(job, settings, *_QUIET, Fate.LEFT_OUT):
            click.echo(line, err=True)
    is_own_home = not any(text.startswith("HOME=") for text in variables)
    for line in (
        *_warnings(job, settings),
        *_of_this_machine(job, settings.home if is_own_home else ""),
    ):
        click.echo(f"warning: {line}", err=True)
    for line in errors:
        click.echo(line, err=True)
    head = [f"Made of {source} by ppojob from-verl; behind a field stands what it comes from."]
    head += ["A cluster needs spec.checkpoint.volume too: {claimName: NAME}, or {size: 100Gi}."]
    head += [f"Not carried over: {line}" for line in errors]
    text = commented(job.tree(), [] if plain else head, (lambda _: ()) if plain else job.origins)
    if output is None:
        click.echo(text, nl=False)
    else:
        with output_errors(output, "another file"):
            output.write_text(text, encoding="utf-8")
    if errors:
        raise SystemExit(contract.EXIT_FAILED)


def _read(arguments: list[str], variables: tuple[str, ...]) -> tuple[str, Settings, list[Problem]]:
    """Return the source of the settings, the settings, and problems of the source."""
    has_file = bool(arguments) and not _SETTING.fullmatch(arguments[0])
    path = arguments.pop(0) if has_file else ""
    own = of_overrides((text, "") for text in arguments)
    if own.problems:
        raise InputError("\n".join(map(str, own.problems)))
    if not path and not own.given:
        why = "there is nothing to convert"
        raise InputError(f"ARGUMENTS: got {ABSENT}: {why}; a script, a YAML file, or KEY=VALUE")
    if variables and (not path or path.endswith(_YAML)):
        raise InputError(f"--env: got {shown(variables[0])}: only a script reads it; without it")
    if not path:
        return "the command line", own, []
    name = printable(path)
    try:
        text = read_text(path)
        settings, problems = (
            (of_yaml(text, name), [])
            if path.endswith(_YAML)
            else _of_script(text, path, _environment(variables))
        )
    except ValueError as problem:
        raise InputError(
            f"{name}: got {ABSENT}: {problem}; a script that calls {_MAIN}, or its YAML"
        ) from None
    if settings.given.get("kind") == Given(KIND, name):
        why = "it is a PPOJob already"
        raise InputError(f"{name}: got kind {shown(KIND)}: {why}; `ppojob run` takes it as it is")
    if not settings.given and not settings.problems:
        raise InputError(f"{name}: got {ABSENT}: it gives no setting of verl's; KEY=VALUE, or YAML")
    settings.add(own)
    return name, settings, problems


def _environment(variables: tuple[str, ...]) -> dict[str, str]:
    found = {"HOME": os.environ.get("HOME", "~")}
    for text in variables:
        match = _VARIABLE.fullmatch(text)
        if match is None:
            why = "it is no variable"
            raise InputError(f"--env: got {shown(text)}: {why}; NAME=VALUE")
        found[match[1]] = match[2]
    return found


def _of_script(text: str, path: str, environment: dict[str, str]) -> tuple[Settings, list[Problem]]:
    """Return the settings of the first call of a trainer, and notes on them.

    A `ValueError` says that there is none, or none of which it is clear that it is made.
    """
    from ppojob_cli.verl.shell_script import read_script

    script = read_script(text, path, environment)
    if not script.launches and script.undecided:
        line, source = script.undecided[0]
        raise ValueError(
            f"line {line}: {unread.told(source)} decides whether {_MAIN} is called, and was not"
            " decided; --env NAME=VALUE for what it asks"
        )
    if not script.launches:
        raise ValueError(f"it does not call {_MAIN}")
    launch, *others = script.launches
    name = printable(path)
    settings = of_overrides((one.text, f"{name}:{one.line}") for one in launch.arguments)
    settings.home = environment["HOME"]
    problems = [
        Problem(
            f"{name}:{other.line}",
            shown(unread.told(other.module)),
            f"line {launch.line} calls it already",
            "a file of its own",
            ReasonCode.DUPLICATE,
        )
        for other in others
    ]
    settings.trainer = trainers.of_module(launch.module)
    if settings.trainer is None:
        where, why = f"{name}:{launch.line}", "another trainer, which has rules of its own"
        problems.append(
            Problem(where, shown(launch.module), why, _MAIN, ReasonCode.NOT_IN_THIS_VERSION)
        )
    return settings, problems


def _lines(job: Draft, settings: Settings, *fates: Fate) -> Iterator[str]:
    """Yield the outcome of each key; by default those that count as errors."""
    wanted = fates or tuple(one for one in Fate if one not in {*_QUIET, *_WARNED})
    for key, given in settings.given.items():
        outcome = job.outcomes[key]
        if outcome.fate in wanted:
            where = f"{given.where}: {key}" if given.where else key
            value = _shown(given.value)
            why = "; ".join(filter(None, (outcome.why, outcome.fate.value)))
            yield printable(f"{where}: got {value}: {why}")


def _warnings(job: Draft, settings: Settings) -> Iterator[str]:
    """Yield differences, a line each; and keys without effect on numbers, a line per reason."""
    yield from _lines(job, settings, Fate.NOTED)
    left_out: dict[str, list[str]] = {}  # with the place of the first key
    for key, given in settings.given.items():
        if job.outcomes[key].fate == Fate.LEFT_OUT:
            found = left_out.setdefault(job.outcomes[key].why, [])
            place = f"{given.where}: " if given.where and not found else ""
            found.append(f"{place}{key}={_shown(given.value)}")
    for why, keys in left_out.items():
        more = f" and {len(keys) - _SHOWN} more (--verbose)" if len(keys) > _SHOWN else ""
        yield printable(f"{', '.join(keys[:_SHOWN])}{more}: {why}; {Fate.LEFT_OUT.value}")


def _of_this_machine(job: Draft, home: str) -> Iterator[str]:
    """Yield warnings on fields with its home folder, unless that is given, or its address."""
    fields = [path for path, one in job.fields.items() if home and f"{home}/" in str(one.value)]
    if fields:
        why = "the home folder of this machine; --env HOME=FOLDER of a script, or KEY=VALUE"
        yield printable(f"{', '.join(fields)}: got {shown(home)}: {why}, for another")
    for path, one in job.fields.items():
        if found := _LOOPBACK.search(str(one.value)):
            why = "a pod reaches nothing there; on a cluster the address of a Service"
            yield printable(f"{path}: got {shown(found[0])}: {why}")


def _shown(value: JsonValue) -> str:
    return shown(unread.told_in(value))


def commented(tree: dict[str, Any], head: Iterable[str], comment: Comment) -> str:
    """Add comments to the YAML, at each field with a comment."""
    lines = [f"# {printable(line)}" for line in head]
    return "\n".join([*lines, *_written(tree, "", comment)]) + "\n"


def _written(tree: dict[str, Any], above: str, comment: Comment) -> Iterator[str]:
    for name, value in tree.items():
        path = f"{above}.{name}".lstrip(".")
        told = ", ".join(comment(path))
        is_section = isinstance(value, dict) and value
        first, *rest = [f"{name}:"] if is_section else to_yaml({name: value}).splitlines()
        yield f"{first}  # {printable(told)}" if told else first
        yield from (
            f"  {line}" for line in (_written(value, path, comment) if is_section else rest)
        )
