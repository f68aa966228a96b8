"""Numbers that bound each other: batches, lengths, steps, sampling, cores."""

from collections.abc import Iterator

from ppojob_api import topology
from ppojob_api.checks.check import Check, conflict, out_of_range
from ppojob_api.problem import ABSENT, Problem, ReasonCode
from ppojob_api.v1alpha1.job import PPOJob

# Estimators that compare the responses of one prompt with each other.
GROUP_ESTIMATORS = frozenset({"grpo", "rloo", "reinforce_plus_plus_baseline", "opo"})


def group_size(job: PPOJob) -> Iterator[Problem]:
    """A group of one has no baseline but itself."""
    algorithm = job.spec.algorithm
    if algorithm.type in GROUP_ESTIMATORS and algorithm.samples_per_prompt < 2:
        yield out_of_range(
            "spec.algorithm.samplesPerPrompt",
            algorithm.samples_per_prompt,
            f"{algorithm.type} compares the responses of a prompt with each other",
            "at least 2, or type: reinforce_plus_plus",
        )


def mini_batch(job: PPOJob) -> Iterator[Problem]:
    """Mini-batches cut a step's prompts into equal parts."""
    prompts, part = job.spec.algorithm.prompts_per_step, job.spec.algorithm.mini_batch_prompts
    where = "spec.algorithm.miniBatchPrompts"
    if part is None:
        return
    if part > prompts:
        why = f"it is more than promptsPerStep {prompts}"
        yield out_of_range(where, part, why, f"a divisor of {prompts}")
    elif prompts % part:
        below, above = nearest_divisors(prompts, part)
        why = f"promptsPerStep {prompts} leaves {prompts % part} prompts over"
        yield out_of_range(where, part, why, f"a divisor such as {below} or {above}")


def nearest_divisors(number: int, near: int) -> tuple[int, int]:
    """The divisors of `number` next below and next above `near`, which is below `number`."""
    below = next(d for d in range(near, 0, -1) if number % d == 0)
    above = next(d for d in range(near, number + 1) if number % d == 0)
    return below, above


def identical_samples(job: PPOJob) -> Iterator[Problem]:
    """Greedy sampling gives one response however often it is asked."""
    spec = job.spec
    samples = spec.algorithm.samples_per_prompt
    if samples > 1 and spec.rollout.temperature == 0:
        why = f"the {samples} samples of a prompt would be identical"
        yield conflict("spec.rollout.temperature", 0, why, "a number above 0")
    if samples > 1 and spec.rollout.top_k == 1:
        why = f"the {samples} samples of a prompt would be identical"
        yield conflict("spec.rollout.topK", 1, why, "-1 for all tokens, or at least 2")


def identical_validation_samples(job: PPOJob) -> Iterator[Problem]:
    """Greedy validation needs one sample."""
    validation = job.spec.rollout.validation
    if validation.samples > 1 and (validation.temperature == 0 or validation.top_k == 1):
        yield conflict(
            "spec.rollout.validation.samples",
            validation.samples,
            "greedy samples of a prompt are identical",
            "1, or a temperature above 0 and topK other than 1",
        )


def top_k(job: PPOJob) -> Iterator[Problem]:
    """TopK 0 would leave no token to choose from."""
    rollout = job.spec.rollout
    for where, value in (
        ("rollout", rollout.top_k),
        ("rollout.validation", rollout.validation.top_k),
    ):
        if value == 0:
            why = "no token would be left"
            yield out_of_range(f"spec.{where}.topK", 0, why, "-1 for all tokens, or at least 1")


def model_tokens(job: PPOJob) -> Iterator[Problem]:
    """Prompt and response fit into the engine together."""
    data, limit = job.spec.data, job.spec.rollout.max_model_tokens
    needed = data.max_prompt_tokens + data.max_response_tokens
    if limit is not None and needed > limit:
        yield out_of_range(
            "spec.rollout.maxModelTokens",
            limit,
            f"maxPromptTokens {data.max_prompt_tokens} + maxResponseTokens "
            f"{data.max_response_tokens} = {needed}",
            f"at least {needed}, or null",
        )


def length_of_run(job: PPOJob) -> Iterator[Problem]:
    """A run has one length: in steps or in epochs."""
    steps = job.spec.steps
    allowed = "exactly one of total and epochs"
    if steps.total is None and steps.epochs is None:
        why = "the run would have no end"
        yield Problem("spec.steps.total", ABSENT, why, allowed, ReasonCode.REQUIRED)
    if steps.total is not None and steps.epochs is not None:
        why = f"total {steps.total} gives the length already"
        yield conflict("spec.steps.epochs", steps.epochs, why, allowed)


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
            why = f"it would never happen in {total} steps (spec.steps.total)"
            yield out_of_range(where, every, why, f"at most {total}, or null")


def warmup(job: PPOJob) -> Iterator[Problem]:
    """The learning rate reaches its peak within the run."""
    spec = job.spec
    if spec.steps.total is None:
        return
    algorithm = spec.algorithm
    part = algorithm.mini_batch_prompts or algorithm.prompts_per_step
    updates = spec.steps.total * algorithm.epochs * max(1, algorithm.prompts_per_step // part)
    if spec.optimizer.warmup_steps > updates:
        yield out_of_range(
            "spec.optimizer.warmupSteps",
            spec.optimizer.warmup_steps,
            f"the {spec.steps.total} steps of spec.steps.total make {updates} optimizer steps",
            f"at most {updates}",
        )


def cores(job: PPOJob) -> Iterator[Problem]:
    """Threads that share a core slow each other down many times over."""
    pods = job.spec.roles.actor_rollout
    if pods.cpu is None:
        return
    ranks = topology.ranks_per_replica(pods)
    threads = ranks * topology.threads_per_rank(pods)
    if threads > pods.cpu:
        yield conflict(
            "spec.roles.actorRollout.cpu",
            pods.cpu,
            f"{ranks} x threadsPerRank {topology.threads_per_rank(pods)} = {threads} threads",
            f"at least {threads}, or fewer threadsPerRank",
        )


def ranks_and_gpus(job: PPOJob) -> Iterator[Problem]:
    """On GPUs every rank has one of its own."""
    pods = job.spec.roles.actor_rollout
    ranks = pods.ranks_per_replica
    if pods.gpus_per_replica and ranks is not None and ranks != pods.gpus_per_replica:
        yield conflict(
            "spec.roles.actorRollout.ranksPerReplica",
            ranks,
            f"gpusPerReplica is {pods.gpus_per_replica}, and a GPU holds one rank",
            f"{pods.gpus_per_replica}, or null",
        )


_BATCH = ("spec.algorithm.promptsPerStep", "spec.algorithm.miniBatchPrompts")
_SAMPLES = "spec.algorithm.samplesPerPrompt"
_STEPS = ("spec.steps.total", "spec.steps.epochs")

ARITHMETIC_CHECKS = (
    Check(group_size, ("spec.algorithm.type", _SAMPLES)),
    Check(mini_batch, _BATCH),
    Check(
        warmup, (*_BATCH, "spec.steps.total", "spec.algorithm.epochs", "spec.optimizer.warmupSteps")
    ),
    Check(identical_samples, (_SAMPLES, "spec.rollout.temperature", "spec.rollout.topK")),
    Check(top_k, ("spec.rollout.topK", "spec.rollout.validation.topK")),
    Check(
        model_tokens,
        ("spec.data.maxPromptTokens", "spec.data.maxResponseTokens", "spec.rollout.maxModelTokens"),
    ),
    Check(identical_validation_samples, ("spec.rollout.validation",)),
    Check(cores, ("spec.roles.actorRollout",)),
    Check(ranks_and_gpus, ("spec.roles.actorRollout",)),
    Check(length_of_run, _STEPS),
    Check(within_run, (*_STEPS, "spec.steps.validateEvery", "spec.checkpoint.every")),
)
