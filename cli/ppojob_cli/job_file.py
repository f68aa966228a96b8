"""Job files: reading and validation, with overrides from the command line."""

from collections.abc import Sequence
from pathlib import Path

from ppojob_api import manifest, validation
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.overrides import Given, Overrides
from ppojob_trainer.errors import ConfigError


def validate_file(path: str, overrides: Sequence[Given] = ()) -> list[Problem] | PPOJob:
    """Return a job, or all problems of its file, the overrides and the resulting job."""
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
    """Read a job from a file; a `ConfigError` has all problems at once."""
    judged = validate_file(str(path), overrides)
    if isinstance(judged, PPOJob):
        return judged
    raise ConfigError(list(map(str, judged)))
