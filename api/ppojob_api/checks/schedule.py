"""How long a run is, and what happens within it: warm-up, validations, commits."""

import re
from collections.abc import Iterator

from ppojob_api.checks.check import Check, bad_form, conflict, out_of_range
from ppojob_api.problem import ABSENT, Problem, ReasonCode
from ppojob_api.v1alpha1.job import PPOJob, PPOJobSpec
from ppojob_api.v1alpha1.training import OptimizerSpec

VALIDATION_METRICS = ("val-core/", "val-aux/")

# How many samples of a prompt a metric of a validation is taken of.
_SAMPLES_OF_METRIC = re.compile(r".+@([1-9][0-9]*)(?:/mean|/std)?")


def length_of_run(job: PPOJob) -> Iterator[Problem]:
    """A run that trains has one length: in steps or in epochs."""
    steps = job.spec.steps
    allowed = "exactly one of total and epochs"
    if steps.total is None and steps.epochs is None and not steps.validate_only:
        why = "the run would have no end"
        yield Problem("spec.steps.total", ABSENT, why, allowed, ReasonCode.REQUIRED)
    if steps.total is not None and steps.epochs is not None:
        why = f"total {steps.total} gives the length already"
        yield conflict("spec.steps.epochs", steps.epochs, why, allowed)


def validation_alone(job: PPOJob) -> Iterator[Problem]:
    """A run that only validates has rows, and does so first."""
    steps, where = job.spec.steps, "spec.data.validation"
    if not steps.validate_only:
        return
    if not job.spec.data.validation:
        why = "spec.steps.validateOnly has no rows to validate on"
        allowed = "a list of files, or validateOnly: false"
        yield Problem(where, ABSENT, why, allowed, ReasonCode.REQUIRED)
    if not steps.validate_first:
        why = "validateOnly runs the first validation and nothing else"
        yield conflict("spec.steps.validateFirst", False, why, "true, or validateOnly: false")


def best_commit(job: PPOJob) -> Iterator[Problem]:
    """The commits that compete were validated, and there are several."""
    commits = job.spec.checkpoint.every
    if job.spec.checkpoint.best is None:
        return
    validations = job.spec.steps.validate_every
    if validations is None:
        why = "spec.checkpoint.best compares validations, and there are none in between"
        allowed = "a number of steps, or remove spec.checkpoint.best"
        yield Problem("spec.steps.validateEvery", ABSENT, why, allowed, ReasonCode.REQUIRED)
    elif commits is None:
        why = "spec.checkpoint.best chooses between commits, and there is only the last"
        allowed = f"a multiple of validateEvery {validations}, or remove spec.checkpoint.best"
        yield Problem("spec.checkpoint.every", ABSENT, why, allowed, ReasonCode.REQUIRED)
    elif commits % validations:
        why = f"spec.checkpoint.best needs a validation at each commit, every {validations} steps"
        allowed = f"a multiple of {validations}"
        yield conflict("spec.checkpoint.every", commits, why, allowed)


def best_metric(job: PPOJob) -> Iterator[Problem]:
    """What tells the best commit is told by validations, of as many samples as they draw."""
    best, samples = job.spec.checkpoint.best, job.spec.rollout.validation.samples
    if best is None:
        return
    where, found = "spec.checkpoint.best.metric", _SAMPLES_OF_METRIC.fullmatch(best.metric)
    if not best.metric.startswith(VALIDATION_METRICS):
        allowed = f"a name that begins with {' or '.join(VALIDATION_METRICS)}"
        yield bad_form(where, best.metric, "it is not a metric of a validation", allowed)
    elif found is None:
        why = "it does not say of how many samples"
        yield bad_form(where, best.metric, why, "a name such as val-core/openai/gsm8k/acc/mean@1")
    elif int(found[1]) > samples:
        why = f"spec.rollout.validation.samples gives {samples} of each prompt"
        yield conflict(where, best.metric, why, f"@{samples} or less, or more samples")


def within_run(job: PPOJob) -> Iterator[Problem]:
    """What happens every n steps happens at least once."""
    total = job.spec.steps.total
    if total is None:
        return
    periods = (
        ("spec.steps.validateEvery", job.spec.steps.validate_every),
        ("spec.checkpoint.every", job.spec.checkpoint.every),
    )
    for where, every in periods:
        if every is not None and every > total:
            why = f"it would never happen in the {total} steps of the run"
            yield out_of_range(where, every, why, f"at most {total}, or remove it")


def warmup(job: PPOJob) -> Iterator[Problem]:
    """The learning rates reach their peaks within the run."""
    algorithm, critic, total = job.spec.algorithm, job.spec.critic, job.spec.steps.total
    if total is None:
        return
    prompts, part = algorithm.prompts_per_step, algorithm.mini_batch_prompts
    steps = total - (critic.warmup_steps if critic is not None else 0)
    updates = steps * algorithm.epochs * _parts(prompts, part)
    yield from _warmup("spec.optimizer", job.spec.optimizer, total, updates)
    if critic is not None:
        passes = total * (critic.epochs or algorithm.epochs)
        updates = passes * _parts(prompts, critic.mini_batch_prompts or part)
        yield from _warmup("spec.critic.optimizer", critic.optimizer, total, updates)


def _parts(prompts: int, part: int | None) -> int:
    return max(1, prompts // (part or prompts))


def _warmup(section: str, optimizer: OptimizerSpec, total: int, updates: int) -> Iterator[Problem]:
    if 0 < updates < optimizer.warmup_steps:
        where = f"{section}.warmupSteps"
        why = f"the {total} steps of the run make {updates} optimizer steps"
        yield out_of_range(where, optimizer.warmup_steps, why, f"at most {updates}")


def critic_warmup(job: PPOJob) -> Iterator[Problem]:
    """The policy is trained too."""
    critic, total = job.spec.critic, job.spec.steps.total
    if critic is not None and total is not None and critic.warmup_steps >= total:
        where = "spec.critic.warmupSteps"
        why = f"none of the {total} steps of the run would train the policy"
        yield out_of_range(where, critic.warmup_steps, why, f"at most {total - 1}")


def steps_of_run(spec: PPOJobSpec, rows: int) -> int:
    """Steps of a run.

    Args:
        spec: of a good job.
        rows: training prompts that there are; each pass draws whole batches of them.
    """
    if spec.steps.validate_only:
        return 0
    if spec.steps.total is not None:
        return spec.steps.total
    return (spec.steps.epochs or 1) * (rows // spec.algorithm.prompts_per_step)


_OF_LENGTH = (warmup, critic_warmup, within_run)


def check_length(job: PPOJob, rows: int) -> list[Problem]:
    """Judge what the data alone tells: whether all that is asked for fits into the epochs.

    Args:
        job: a good job.
        rows: training prompts that there are.

    Returns:
        What the same job would be told with as many steps; nothing where it gives the steps, or
        where there are too few rows for any.
    """
    spec, total = job.spec, steps_of_run(job.spec, rows)
    if spec.steps.epochs is None or total == 0:
        return []
    steps = spec.steps.model_copy(update={"total": total, "epochs": None})
    known = job.model_copy(update={"spec": spec.model_copy(update={"steps": steps})})
    return [problem for find in _OF_LENGTH for problem in find(known)]


_LENGTH = ("spec.steps.total", "spec.steps.epochs")

SCHEDULE_CHECKS = (
    Check(
        warmup,
        (
            "spec.algorithm.promptsPerStep",
            "spec.algorithm.miniBatchPrompts",
            "spec.algorithm.epochs",
            "spec.optimizer.warmupSteps",
            "spec.critic",
            "spec.steps.total",
        ),
    ),
    Check(critic_warmup, ("spec.critic.warmupSteps", "spec.steps.total")),
    Check(length_of_run, (*_LENGTH, "spec.steps.validateOnly")),
    Check(within_run, (*_LENGTH, "spec.steps.validateEvery", "spec.checkpoint.every")),
    Check(
        validation_alone,
        ("spec.steps.validateOnly", "spec.steps.validateFirst", "spec.data.validation"),
    ),
    Check(best_metric, ("spec.checkpoint.best", "spec.rollout.validation.samples")),
    Check(
        best_commit,
        ("spec.checkpoint.best", "spec.checkpoint.every", "spec.steps.validateEvery"),
    ),
)
