"""Job files: reading and validation, with overrides from the command line."""

from collections.abc import Sequence
from pathlib import Path

from ppojob_api import manifest, validation
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.overrides import Given, Overrides
from ppojob_trainer.errors import ConfigError


def validate_file(path: str, overrides: Sequence[Given] = ()) -> list[Problem] | PPOJob:
    """Read and judge one manifest, with fields given on the command line.

    Returns:
        The job, or all that is wrong with the file, the overrides and the job that they make.
    """
    read = manifest.read_file(path)
    problems = list(read.problems)
    if problems and read.value is None:
        return problems
    overridden = Overrides(read.value, overrides)
    problems += overridden.problems
    doubtful = (*read.doubtful, *overridden.doubtful)
    judged = validation.validate(overridden.value, doubtful=doubtful)
    if isinstance(judged, list):
        return problems + [overridden.named(problem) for problem in judged]
    return problems or judged


def load_job(path: str | Path, overrides: Sequence[Given] = ()) -> PPOJob:
    """The job of a file, for commands that go on with it.

    Raises:
        ConfigError: The file or the job in it is wrong; all problems at once.
    """
    judged = validate_file(str(path), overrides)
    if isinstance(judged, PPOJob):
        return judged
    raise ConfigError(list(map(str, judged)))
