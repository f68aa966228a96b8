"""Everything that can be wrong with a job and that the job itself shows, all at once.

The same checks run in `ppojob validate`, at admission, and again when a pod starts.
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
    (schedule.settings_of_other_optimizers, ("spec.optimizer", "spec.critic.optimizer")),
    (pods.without_pods, ("spec.pods", *_ROLES)),
    (pods.pod_sets, ("spec.scheduling.type", *_ROLES)),
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
"""What CEL cannot say. Each check with the paths that it reads: it is skipped where one of them has
a value that is wrong in itself."""


@cache
def _read_by_rules() -> list[tuple[Rule, tuple[str, ...]]]:
    """The rules of a job, each with the paths that it reads."""
    return [(rule, tuple(rule.reads())) for rule in RULES if not rule.is_of_edits]


def check(job: PPOJob, *, unknown: Iterable[PathKey] = ()) -> list[Problem]:
    """Judge a job across its fields.

    Args:
        job: Any job that the models accept.
        unknown: Paths whose values the author did not give; rules that read them are skipped.
    """
    paths = [dotted(path) for path in unknown]
    rules = [rule for rule, reads in _read_by_rules() if not _touches(reads, paths)]
    checks = [check for check, reads in CHECKS if not _touches(reads, paths)]
    return [*_broken(rules, job), *(problem for check in checks for problem in check(job))]


def check_length(job: PPOJob, rows: int) -> list[Problem]:
    """Judge what the number of training prompts tells: whether all fits into epochs and steps.

    Returns:
        What the same job would be told with as many steps; nothing where it gives the steps, or
        where there are too few rows for any.
    """
    known = _with_steps(job, rows)
    rules = [rule for rule, reads in _read_by_rules() if "spec.steps.total" in reads]
    broken = [] if known is None else list(_broken(rules, known))
    return [*broken, *schedule.rounds_without_rows(job, rows)]


def length_warnings(job: PPOJob, rows: int) -> list[Problem]:
    """What is worth knowing of a good job beside `warnings`, as it has so many prompts."""
    known = _with_steps(job, rows)
    late = [] if known is None else list(schedule.after_the_end(known))
    return [*late, *schedule.values_without_use(job, rows)]


def _with_steps(job: PPOJob, rows: int) -> PPOJob | None:
    """The job with steps for its epochs; None where it has none, or the data gives no step."""
    spec, total = job.spec, schedule.steps_of_run(job.spec, rows)
    if spec.steps.epochs is None or total == 0:
        return None
    steps = spec.steps.model_copy(update={"total": total, "epochs": None})
    return job.model_copy(update={"spec": spec.model_copy(update={"steps": steps})})


def _broken(rules: Iterable[Rule], job: PPOJob) -> Iterator[Problem]:
    values = job.model_dump(mode="json", exclude_none=True)
    # An API server fills in defaults, so what its author wrote of them is no longer known there.
    told = job.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    sections = cache(lambda path: list(places(values, path)))
    for rule in rules:
        yield from rule.problems(values, told, sections(rule.section))


def warnings(job: PPOJob) -> list[Problem]:
    """What is worth knowing of a good job before it runs."""
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
    """Read and judge a manifest that an author wrote.

    Args:
        value: The manifest as plain values.
        doubtful: Paths that a reader complained about already; they are not judged again.

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
    """What is said of a missing name, where the author leaves it to the API server."""
    is_name = (problem.where, problem.got) == ("metadata.name", ABSENT)
    if not is_name or "generateName" not in (value.get("metadata") or ()):
        return problem
    why = "only `kubectl create` makes one of metadata.generateName"
    return replace(problem, why=why, allowed="the name itself")


def _touches(reads: Iterable[str], unknown: list[str]) -> bool:
    return any(within(read, path) or within(path, read) for path in unknown for read in reads)
