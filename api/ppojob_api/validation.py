"""Validation of a job: all problems that the manifest itself shows, at once.

The same checks run in `ppojob validate`, in the operator, and when a pod starts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

from ppojob_api.checks import pods, schedule, tools
from ppojob_api.parsing import parse
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.rules import RULES, Rule, places
from ppojob_api.shape import PathKey, dotted, within
from ppojob_api.v1alpha1.job import PPOJob

_ROLES: Final = (
    "spec.roles",
    "spec.algorithm",
    "spec.rewards",
    "spec.rewardModel",
    "spec.agent",
    "spec.judge",
)
CHECKS: Final[tuple[tuple[Callable[[PPOJob], Iterator[Problem]], tuple[str, ...]], ...]] = (
    (schedule.best_metric, ("spec.checkpoint.best", "spec.rollout.validation.samples")),
    (pods.without_pods, ("spec.pods", *_ROLES)),
    (pods.overrides, ("spec.pods", "spec.scheduling.type")),
    (pods.volumes, ("spec.pods",)),
    (pods.resources, ("spec.pods",)),
    (tools.queries, ("spec.agent.format", "spec.agent.tools")),
    (tools.schemas, ("spec.agent.tools",)),
    (tools.addresses, ("spec.agent.egress",)),
    (
        tools.services,
        ("spec.agent.tools", "spec.agent.mcpServers", "spec.agent.egress", "spec.sandbox.url"),
    ),
)
"""Rules that CEL cannot express, each with the paths that it reads. A rule is skipped if one of the
values there is invalid in itself."""


@cache
def _read_by_rules() -> list[tuple[Rule, tuple[str, ...]]]:
    """The rules of a job, each with the paths that it reads."""
    return [(rule, tuple(rule.reads())) for rule in RULES if not rule.is_of_edits]


def check(job: PPOJob, *, unknown: Iterable[PathKey] = ()) -> list[Problem]:
    """Check a job across its fields.

    Args:
        job: Any job that the models accept.
        unknown: Paths whose values the author did not give; rules that read them are skipped.
    """
    paths = [dotted(path) for path in unknown]
    rules = [rule for rule, reads in _read_by_rules() if not _touches(reads, paths)]
    checks = [check for check, reads in CHECKS if not _touches(reads, paths)]
    return [*_broken(rules, job), *(problem for check in checks for problem in check(job))]


def check_length(job: PPOJob, rows: int) -> list[Problem]:
    """Check a job given the number of training prompts, which determines steps from epochs.

    Returns:
        The problems of the same job with that number of steps; none if the job gives the steps, or
        if there are too few rows for a step.
    """
    known = _with_steps(job, rows)
    rules = [rule for rule, reads in _read_by_rules() if "spec.steps.total" in reads]
    broken = [] if known is None else list(_broken(rules, known))
    return [*broken, *schedule.rounds_without_rows(job, rows)]


def length_warnings(job: PPOJob, rows: int) -> list[Problem]:
    """Warnings about a valid job given the number of training prompts, besides `warnings`."""
    known = _with_steps(job, rows)
    late = [] if known is None else list(schedule.after_the_end(known))
    return [*late, *schedule.values_without_use(job, rows)]


def _with_steps(job: PPOJob, rows: int) -> PPOJob | None:
    """The job with steps instead of epochs; None without epochs, or if the data gives no step."""
    spec, total = job.spec, schedule.steps_of_run(job.spec, rows)
    if spec.steps.epochs is None or total == 0:
        return None
    steps = spec.steps.model_copy(update={"total": total, "epochs": None})
    return job.model_copy(update={"spec": spec.model_copy(update={"steps": steps})})


def _broken(rules: Iterable[Rule], job: PPOJob) -> Iterator[Problem]:
    values = job.model_dump(mode="json", exclude_none=True)
    # The API server writes defaults, so only values that differ from them are the author's.
    told = job.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    sections = cache(lambda path: list(places(values, path)))
    for rule in rules:
        yield from rule.problems(values, told, sections(rule.section))


def warnings(job: PPOJob) -> list[Problem]:
    """Warnings about a valid job before it runs."""
    told = (
        schedule.rounded_updates,
        schedule.rounded_merges,
        schedule.after_the_end,
        schedule.ranks_without_work,
        schedule.engines_without_prompts,
        schedule.validation_without_scores,
    )
    return [problem for find in told for problem in find(job)]


def validate(value: object, *, doubtful: Iterable[PathKey] = ()) -> PPOJob | list[Problem]:
    """Parse and check a manifest.

    Args:
        value: The manifest as plain values.
        doubtful: Paths with problems that the YAML reader reported; they are not checked again.

    Returns:
        The job, or all its problems.
    """
    job, problems, unknown = parse(value, doubtful)
    if isinstance(value, dict):
        problems = [_with_name_to_come(problem, value) for problem in problems]
        if value.get("status") is not None:
            why = "the operator and the job's controller write the status"
            problems = [one for one in problems if not one.where.startswith("status")]
            got = shown(value["status"])
            problems.append(Problem("status", got, why, "remove it", ReasonCode.FORBIDDEN))
    if job is None:
        return problems
    problems += check(job, unknown=unknown)
    return problems or job


def _with_name_to_come(problem: Problem, value: dict[str, Any]) -> Problem:
    """The problem of a missing name, with another text if `generateName` is given."""
    is_name = (problem.where, problem.got) == ("metadata.name", ABSENT)
    if not is_name or "generateName" not in (value.get("metadata") or ()):
        return problem
    why = "only `kubectl create` makes one of metadata.generateName"
    return replace(problem, why=why, allowed="the name itself")


def _touches(reads: Iterable[str], unknown: list[str]) -> bool:
    return any(within(read, path) or within(path, read) for path in unknown for read in reads)
