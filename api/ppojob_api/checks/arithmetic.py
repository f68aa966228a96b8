"""Numbers that bound each other: batches, lengths, sampling."""

from collections.abc import Iterator

from ppojob_api.checks.check import Check, conflict, out_of_range
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob

# Below this the vLLM engine lifts a temperature to it in silence; the trainer refuses it too.
LEAST_TEMPERATURE = 0.01

# vLLM's own limit; what is above it would fail the first generation.
VLLM_TEMPERATURE_LIMIT = 2.0


def group_size(job: PPOJob) -> Iterator[Problem]:
    """A group of one has no baseline but itself."""
    algorithm = job.spec.algorithm
    if algorithm.estimator.compares_group and algorithm.samples_per_prompt < 2:
        yield out_of_range(
            "spec.algorithm.samplesPerPrompt",
            algorithm.samples_per_prompt,
            f"{algorithm.type} compares the responses of a prompt with each other",
            "at least 2, or type: reinforce_plus_plus",
        )


def mini_batch(job: PPOJob) -> Iterator[Problem]:
    """Mini-batches cut a step's prompts into equal parts."""
    prompts = job.spec.algorithm.prompts_per_step
    parts = {"spec.algorithm": job.spec.algorithm.mini_batch_prompts}
    if job.spec.critic is not None:
        parts["spec.critic"] = job.spec.critic.mini_batch_prompts
    for section, part in parts.items():
        where = f"{section}.miniBatchPrompts"
        if part is not None and part > prompts:
            why = f"it is more than promptsPerStep {prompts}"
            yield out_of_range(where, part, why, f"a divisor of {prompts}")
        elif part is not None and prompts % part:
            below, above = nearest_divisors(prompts, part)
            why = f"promptsPerStep {prompts} leaves {prompts % part} prompts over"
            yield out_of_range(where, part, why, f"a divisor such as {below} or {above}")


def nearest_divisors(number: int, near: int) -> tuple[int, int]:
    """The divisors of `number` next below and next above `near`, which is below `number`."""
    below = next(d for d in range(near, 0, -1) if number % d == 0)
    above = next(d for d in range(near, number + 1) if number % d == 0)
    return below, above


def temperatures(job: PPOJob) -> Iterator[Problem]:
    """Engines lift temperatures next to 0, or divide by almost nothing; one of them has a top."""
    rollout = job.spec.rollout
    own = ("spec.rollout.temperature", rollout.temperature)
    held_out = ("spec.rollout.validation.temperature", rollout.validation.temperature)
    # Also where nothing is trained: the policy comes up with all that training needs.
    if rollout.temperature < LEAST_TEMPERATURE:
        why = "the trainer divides logits by it; greedy sampling is for rollout.validation"
        yield out_of_range(*own, why, f"at least {LEAST_TEMPERATURE}")
    if 0 < rollout.validation.temperature < LEAST_TEMPERATURE:
        why = "engines take it for 0, or divide by almost nothing"
        yield out_of_range(*held_out, why, "must be 0, or at least 0.01 and finite")
    for where, value in (own, held_out):
        if rollout.engine == "vllm" and value > VLLM_TEMPERATURE_LIMIT:
            allowed = "at most 2, or engine: huggingface"
            yield conflict(where, value, "engine vllm takes none above 2", allowed)


def identical_samples(job: PPOJob) -> Iterator[Problem]:
    """One token to choose from gives one response however often it is asked."""
    spec = job.spec
    samples = spec.algorithm.samples_per_prompt
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
            f"at least {needed}, or remove it",
        )


_BATCH = (
    "spec.algorithm.promptsPerStep",
    "spec.algorithm.miniBatchPrompts",
    "spec.critic.miniBatchPrompts",
)
_SAMPLES = "spec.algorithm.samplesPerPrompt"

ARITHMETIC_CHECKS = (
    Check(group_size, ("spec.algorithm.type", _SAMPLES)),
    Check(mini_batch, _BATCH),
    Check(
        temperatures,
        (
            "spec.rollout.engine",
            "spec.rollout.temperature",
            "spec.rollout.validation.temperature",
        ),
    ),
    Check(identical_samples, (_SAMPLES, "spec.rollout.topK")),
    Check(top_k, ("spec.rollout.topK", "spec.rollout.validation.topK")),
    Check(
        model_tokens,
        ("spec.data.maxPromptTokens", "spec.data.maxResponseTokens", "spec.rollout.maxModelTokens"),
    ),
    Check(identical_validation_samples, ("spec.rollout.validation",)),
)
