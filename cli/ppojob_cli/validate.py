"""`ppojob validate`: every problem of every file, one a line, before anything is started."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from ppojob_api import contract, manifest, validation
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.overrides import override, set_option
from ppojob_trainer.errors import ConfigError


def validate_file(path: str, overrides: Sequence[str] = ()) -> list[Problem] | PPOJob:
    """Read and judge one manifest.

    Args:
        path: A file, or `-` for standard input.
        overrides: Fields given on the command line, `PATH=VALUE` each.

    Returns:
        The job, or all that is wrong with the file, the overrides and the job that they make.
    """
    read = manifest.read_file(path)
    problems = list(read.problems)
    if problems and read.value is None:
        return problems
    overridden = override(read.value, overrides)
    problems += overridden.problems
    doubtful = (*read.doubtful, *overridden.doubtful)
    judged = validation.validate(overridden.value, doubtful=doubtful)
    if isinstance(judged, list):
        return problems + [overridden.named(problem) for problem in judged]
    return problems or judged


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> PPOJob:
    """The job of a file, for commands that go on with it.

    Args:
        path: A file, or `-` for standard input.
        overrides: Fields given on the command line, `PATH=VALUE` each.

    Raises:
        ConfigError: The file or the job in it is wrong; all problems at once.
    """
    judged = validate_file(str(path), overrides)
    if isinstance(judged, PPOJob):
        return judged
    raise ConfigError(render_problems(judged))


def render_problems(problems: Iterable[Problem], *, name: str | None = None) -> list[str]:
    """Problems as lines.

    Args:
        problems: What to show.
        name: The file, where a reader could take one file's problems for another's.
    """
    lines = []
    for problem in problems:
        in_file = name is None or problem.where == name or problem.where.startswith(f"{name}:")
        lines.append(str(problem) if in_file else f"{name}: {problem}")
    return lines


def validate_files(
    paths: Sequence[str], overrides: Sequence[str] = ()
) -> list[tuple[str, list[Problem] | PPOJob]]:
    """Judge several files; a job that two of them describe is a problem of the second.

    Args:
        paths: Files, or `-` for standard input.
        overrides: Fields given on the command line, laid into every file.

    Returns:
        Every file's name with its job or its problems, in the order given.
    """
    results: list[tuple[str, list[Problem] | PPOJob]] = []
    first: dict[tuple[str, str], str] = {}
    for path in paths:
        name, judged = manifest.display_name(path), validate_file(path, overrides)
        if isinstance(judged, PPOJob):
            key = (judged.metadata.namespace, judged.metadata.name)
            if key in first:
                judged = [_same_job(judged, first[key])]
            first.setdefault(key, name)
        results.append((name, judged))
    return results


def _same_job(job: PPOJob, other: str) -> Problem:
    why = f"{other} describes the job {job.metadata.namespace}/{job.metadata.name} already"
    name = shown(job.metadata.name)
    return Problem("metadata.name", name, why, "another name", ReasonCode.DUPLICATE)


def warn(job: PPOJob, *, name: str | None = None) -> None:
    """Write what is worth knowing of a good job to standard error.

    Args:
        job: The job.
        name: The file, where there are several.
    """
    for line in render_problems(validation.warnings(job), name=name):
        click.echo(f"warning: {line}", err=True)


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@set_option
def validate(files: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Check PPOJob manifests; - is standard input.

    Prints every problem of every FILE as one line, `where: got: why; what is allowed`, and ends
    with status 2 if there is any. Warnings are lines too, and change nothing.
    """
    results = validate_files(files, overrides)
    for name, judged in results:
        shown_name = name if len(results) > 1 else None
        if isinstance(judged, PPOJob):
            job = f"{judged.metadata.namespace}/{judged.metadata.name}"
            click.echo(f"{name}: ok: PPOJob {job}")
            warn(judged, name=shown_name)
            continue
        for line in render_problems(judged, name=shown_name):
            click.echo(line, err=True)
    if any(isinstance(judged, list) for _, judged in results):
        raise SystemExit(contract.EXIT_INVALID)
