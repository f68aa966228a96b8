"""Everything that can be wrong with a job and that the job itself shows, all at once.

The same checks run in `ppojob validate`, at admission, and again when a pod starts.
"""

from collections.abc import Iterable

from ppojob_api.checks.arithmetic import ARITHMETIC_CHECKS
from ppojob_api.checks.effect import EFFECT_CHECKS
from ppojob_api.checks.layout import LAYOUT_CHECKS
from ppojob_api.checks.names import NAME_CHECKS
from ppojob_api.checks.paths import PATH_CHECKS
from ppojob_api.checks.pod_forms import POD_FORM_CHECKS
from ppojob_api.checks.pods import POD_CHECKS
from ppojob_api.checks.policy_loss import POLICY_LOSS_CHECKS
from ppojob_api.checks.precision import rounded_updates
from ppojob_api.checks.schedule import SCHEDULE_CHECKS
from ppojob_api.checks.scheduling import SCHEDULING_CHECKS
from ppojob_api.checks.support import SUPPORT_CHECKS
from ppojob_api.parsing import parse
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.shape import PathKey, dotted, within
from ppojob_api.v1alpha1.job import PPOJob

CHECKS = (
    *NAME_CHECKS,
    *PATH_CHECKS,
    *ARITHMETIC_CHECKS,
    *POLICY_LOSS_CHECKS,
    *SCHEDULE_CHECKS,
    *LAYOUT_CHECKS,
    *POD_CHECKS,
    *POD_FORM_CHECKS,
    *SCHEDULING_CHECKS,
    *EFFECT_CHECKS,
    *SUPPORT_CHECKS,
)

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

    Returns:
        The problems; empty for a good job.
    """
    paths = [dotted(path) for path in unknown]
    rules = [rule for rule in CHECKS if not _touches(rule.reads, paths)]
    return [problem for rule in rules for problem in rule.find(job)]


def warnings(job: PPOJob) -> list[Problem]:
    """What is worth knowing of a good job before it runs."""
    return list(rounded_updates(job))


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
