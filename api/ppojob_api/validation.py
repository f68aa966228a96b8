"""Everything that can be wrong with a job and that the job itself shows, all at once.

The same checks run in `ppojob validate`, at admission, and again when a pod starts.
"""

from collections.abc import Iterable, Iterator

from ppojob_api.checks.pods import POD_CHECKS
from ppojob_api.checks.schedule import (
    SCHEDULE_CHECKS,
    after_the_end,
    rounded_merges,
    rounded_updates,
    steps_of_run,
)
from ppojob_api.checks.tools import TOOL_CHECKS
from ppojob_api.parsing import parse
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.rules import RULES, Rule
from ppojob_api.shape import PathKey, dotted, within
from ppojob_api.v1alpha1.job import PPOJob

CHECKS = (*SCHEDULE_CHECKS, *POD_CHECKS, *TOOL_CHECKS)
_RULES_OF_A_JOB = tuple(rule for rule in RULES if not rule.is_of_edits)

_NAME_TO_COME = Problem(
    "metadata.name",
    ABSENT,
    "only `kubectl create` makes one of metadata.generateName",
    "the name itself",
    ReasonCode.REQUIRED,
)


def check(job: PPOJob, *, unknown: Iterable[PathKey] = ()) -> list[Problem]:
    """Judge a job across its fields.

    Args:
        job: Any job that the models accept.
        unknown: Paths whose values the author did not give; rules that read them are skipped.
    """
    paths = [dotted(path) for path in unknown]
    rules = [rule for rule in _RULES_OF_A_JOB if not _touches(rule.reads(), paths)]
    checks = [check for check in CHECKS if not _touches(check.reads, paths)]
    return [*_broken(rules, job), *(problem for check in checks for problem in check.find(job))]


def check_length(job: PPOJob, rows: int) -> list[Problem]:
    """Judge what the number of training prompts tells: whether all fits into the epochs.

    Returns:
        What the same job would be told with as many steps; nothing where it gives the steps, or
        where there are too few rows for any.
    """
    known = _with_steps(job, rows)
    rules = [rule for rule in _RULES_OF_A_JOB if "spec.steps.total" in rule.reads()]
    return [] if known is None else list(_broken(rules, known))


def length_warnings(job: PPOJob, rows: int) -> list[Problem]:
    """What `warnings` would tell of a good job with as many steps as so many prompts give it."""
    known = _with_steps(job, rows)
    return [] if known is None else list(after_the_end(known))


def _with_steps(job: PPOJob, rows: int) -> PPOJob | None:
    """The job with steps for its epochs; None where it has none, or the data gives no step."""
    spec, total = job.spec, steps_of_run(job.spec, rows)
    if spec.steps.epochs is None or total == 0:
        return None
    steps = spec.steps.model_copy(update={"total": total, "epochs": None})
    return job.model_copy(update={"spec": spec.model_copy(update={"steps": steps})})


def _broken(rules: Iterable[Rule], job: PPOJob) -> Iterator[Problem]:
    values = job.model_dump(mode="json", exclude_none=True)
    # An API server fills in defaults, so what its author wrote of them is no longer known there.
    told = job.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for rule in rules:
        yield from rule.problems(values, told)


def warnings(job: PPOJob) -> list[Problem]:
    """What is worth knowing of a good job before it runs."""
    return [*rounded_updates(job), *rounded_merges(job), *after_the_end(job)]


def validate(value: object, *, doubtful: Iterable[PathKey] = ()) -> PPOJob | list[Problem]:
    """Read and judge a manifest that an author wrote.

    Args:
        value: The manifest as plain values.
        doubtful: Paths that a reader complained about already; they are not judged again.

    Returns:
        The job, or all its problems.
    """
    parsed = parse(value, doubtful)
    problems = [_NAME_TO_COME if _waits_for_a_name(one, value) else one for one in parsed.problems]
    if isinstance(value, dict) and value.get("status") is not None:
        problems = [p for p in problems if not p.where.startswith("status")]
        problems.append(_status_given(value["status"]))
    if parsed.job is None:
        return problems
    problems += check(parsed.job, unknown=parsed.unknown)
    return problems or parsed.job


def _waits_for_a_name(problem: Problem, value: object) -> bool:
    if (problem.where, problem.got) != ("metadata.name", ABSENT) or not isinstance(value, dict):
        return False
    return "generateName" in (value.get("metadata") or ())


def _status_given(status: object) -> Problem:
    why = "the operator and the job's controller write the status"
    return Problem("status", shown(status), why, "remove it", ReasonCode.FORBIDDEN)


def _touches(reads: Iterable[str], unknown: list[str]) -> bool:
    return any(within(read, path) or within(path, read) for read in reads for path in unknown)
