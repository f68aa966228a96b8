"""Rules and warnings of the schedule: best checkpoint, rounding, and the length of the run."""

import re
from collections.abc import Iterator
from math import ceil
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.rules.run import VALIDATION_METRICS
from ppojob_api.topology import build
from ppojob_api.v1alpha1.job import PPOJob, PPOJobSpec

# The number of samples per prompt in the name of a validation metric.
_SAMPLES_OF_METRIC: Final = re.compile(r".+@([1-9][0-9]*)(?:/mean|/std)?")

_KEPT_BY_BFLOAT16: Final = 2**9
"""bfloat16 has 8 bits: an update is rounded away in a weight that is this many times as large."""


def best_metric(job: PPOJob) -> Iterator[Problem]:
    """The metric of the best checkpoint needs at most the samples that validations draw."""
    best, samples = job.spec.checkpoint.best, job.spec.rollout.validation.samples
    if best is None or not best.metric.startswith(VALIDATION_METRICS):
        return
    where, got = "spec.checkpoint.best.metric", shown(best.metric)
    found = _SAMPLES_OF_METRIC.fullmatch(best.metric)
    if found is None:
        why = "it does not say of how many samples"
        allowed = "a name such as val-core/openai/gsm8k/acc/mean@1"
        yield Problem(where, got, why, allowed, ReasonCode.BAD_FORM)
    elif int(found[1]) > samples:
        why = f"spec.rollout.validation.samples gives {samples} of each prompt"
        allowed = f"@{samples} or less, or more samples"
        yield Problem(where, got, why, allowed, ReasonCode.CONFLICT)


def rounded_updates(job: PPOJob) -> Iterator[Problem]:
    """Warn that updates of AdamW or Muon, about the learning rate, are lost in bfloat16 weights."""
    spec = job.spec
    if spec.model.dtype == "float32" or not spec.steps.trains:
        return
    # Adapters are float32, whatever the weights are.
    trains_own = spec.model.lora is None or spec.model.lora.modules_to_save
    optimizers = [spec.optimizer] if trains_own else []
    optimizers += [spec.critic.optimizer] if spec.critic and not spec.critic.lora else []
    # An update of sgd is as large as the gradient is.
    optimizers = [optimizer for optimizer in optimizers if optimizer.type != "sgd"]
    if not optimizers:
        return
    rate = min(optimizer.learning_rate for optimizer in optimizers)
    why = (
        f"an update as large as learningRate {rate:g} is rounded away in every weight above "
        f"{_KEPT_BY_BFLOAT16 * rate:.2g}"
    )
    allowed = "float32, with training.autocast: bfloat16 for speed"
    yield Problem("spec.model.dtype", shown(spec.model.dtype), why, allowed, ReasonCode.CONFLICT)


def rounded_merges(job: PPOJob) -> Iterator[Problem]:
    """Warn that small adapter updates are lost in merged bfloat16 weights of the engine."""
    spec = job.spec
    is_merged = spec.model.lora is not None and spec.rollout.adapters == "merged"
    if is_merged and spec.rollout.dtype == "bfloat16":
        why = "it rounds merged weights, so small adapter updates are lost"
        allowed = "rollout.adapters: beside, or dtype: float32 where the engine has room for it"
        # The job may be resolved: `auto` is written as what it is.
        is_auto = spec.roles.actor_rollout.gpus_per_replica > 0
        got = shown(spec.rollout.dtype) + " (auto is bfloat16 on GPUs)" * is_auto
        yield Problem("spec.rollout.dtype", got, why, allowed, ReasonCode.CONFLICT)


def after_the_end(job: PPOJob) -> Iterator[Problem]:
    """Warn about validations, checkpoints and traces after the last step."""
    spec = job.spec
    total = spec.steps.total
    if total is None or not spec.steps.trains:
        return
    for where, every in (
        ("spec.steps.validateEvery", spec.steps.validate_every),
        ("spec.checkpoint.every", spec.checkpoint.every),
    ):
        if every is not None and every > total:
            why = f"the run ends before that, at step {total}"
            allowed = "at most steps.total, or remove it"
            yield Problem(where, shown(every), why, allowed, ReasonCode.OUT_OF_RANGE)
    for index, step in enumerate(spec.profile.steps if spec.profile else ()):
        if step > total:
            where = f"spec.profile.steps[{index}]"
            why = f"the run ends before that, at step {total}"
            yield Problem(where, shown(step), why, "at most steps.total", ReasonCode.OUT_OF_RANGE)


def values_without_use(job: PPOJob, rows: int) -> Iterator[Problem]:
    """Warn that type spo has no earlier scores in a run that uses each row once."""
    spec = job.spec
    drawn = steps_of_run(spec, rows) * spec.algorithm.prompts_per_step
    is_mixed = any(file.weight is not None for file in spec.data.train)
    in_order = not is_mixed and spec.data.sampler is None
    if spec.algorithm.type == "spo" and in_order and 0 < drawn <= rows:
        why = (
            f"no row of {rows} is used twice, and a prompt of one row has no earlier score to be "
            "compared with"
        )
        allowed = "more steps or epochs, or another type"
        yield Problem("spec.algorithm.type", shown("spo"), why, allowed, ReasonCode.NO_EFFECT)


def rounds_without_rows(job: PPOJob, rows: int) -> Iterator[Problem]:
    """Rounds of a step need different rows, and the sampler has fewer."""
    algorithm = job.spec.algorithm
    if job.spec.prompts.sampler is None or not algorithm.draw[1] <= rows < algorithm.most_drawn:
        return
    where, (field, drawn) = "spec.algorithm.dynamicSampling.maxRounds", algorithm.draw
    got = shown(algorithm.most_drawn // drawn)
    why = f"data.sampler chooses the rows of all rounds, {drawn} of each ({field}), of {rows}"
    yield Problem(where, got, why, f"at most {rows // drawn}", ReasonCode.OUT_OF_RANGE)


def ranks_without_work(job: PPOJob) -> Iterator[Problem]:
    """Warn about ranks to trace that no role has."""
    topology = build(job.metadata.name, job.spec)
    sizes = [role.world_size for role in topology.with_own_pods if role.holds_models]
    for index, rank in enumerate(job.spec.profile.ranks if job.spec.profile else ()):
        if sizes and rank >= max(sizes):
            where, why = f"spec.profile.ranks[{index}]", "no role has such a rank"
            allowed = f"at most {max(sizes) - 1}"
            yield Problem(where, shown(rank), why, allowed, ReasonCode.OUT_OF_RANGE)


def engines_without_prompts(job: PPOJob) -> Iterator[Problem]:
    """Warn that engines stay idle, since there are fewer prompts than engines."""
    spec, sampling = job.spec, job.spec.algorithm.dynamic_sampling
    draws = spec.algorithm.given is None and spec.rollout.replay is None and spec.steps.trains
    if not draws:
        return
    role = build(job.metadata.name, spec).generating
    engines = role.world_size // spec.rollout.parallelism.tensor
    where, prompts = "spec.algorithm.promptsPerStep", spec.algorithm.prompts_per_step
    if sampling is not None and sampling.prompts_per_round is not None:
        prompts = sampling.prompts_per_round
        where = "spec.algorithm.dynamicSampling.promptsPerRound"
    if prompts < engines:
        why = f"an engine generates all responses of a prompt, so {engines - prompts} stay idle"
        allowed = f"at least {engines}, or fewer ranks of roles.{role.role}"
        yield Problem(where, shown(prompts), why, allowed, ReasonCode.OUT_OF_RANGE)


def validation_without_scores(job: PPOJob) -> Iterator[Problem]:
    """Warn that nothing scores the validation responses."""
    spec = job.spec
    draws = spec.steps.trains and spec.algorithm.given is None
    if spec.data.validation and draws and not spec.is_scored:
        where, allowed = "spec.data.validation", "rewards, or a rewardModel, or remove it"
        why = "nothing scores the validation responses, so val/ has no scores"
        yield Problem(
            where, f"{len(spec.data.validation)} items", why, allowed, ReasonCode.NO_EFFECT
        )


def steps_of_run(spec: PPOJobSpec, rows: int) -> int:
    """Steps of a valid job with this number of training prompts; each epoch has whole batches.

    With dynamic sampling the maximum, since a step may draw several batches.
    """
    if not spec.steps.trains:
        return 0
    if spec.steps.total is not None:
        return spec.steps.total
    _, drawn = spec.algorithm.draw
    batches = (spec.steps.epochs or 1) * (rows // drawn)
    return ceil(batches / ceil(spec.algorithm.prompts_per_step / drawn))
