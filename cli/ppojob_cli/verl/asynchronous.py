"""Conversion of verl's asynchronous trainers, which generate later steps before training."""

import math
from typing import Final

from ppojob_cli.verl.draft import Draft, Verl, is_count
from ppojob_cli.verl.trainers import (
    DAPO,
    ENTROPY,
    FLOWRL,
    FULLY_ASYNC,
    GVPO,
    MAIN_PPO,
    MAIN_PPO_V0,
    ONE_STEP_OFF,
    PARTIAL,
)

_TRAINING: Final = "async_training"
_PROMPTS: Final = "data.train_batch_size"
_FETCHED: Final = "data.gen_batch_size"
_PART: Final = "actor_rollout_ref.actor.ppo_mini_batch_size"
DRAWN: Final = "rollout.total_rollout_steps"
_MAY_FETCH: Final = (MAIN_PPO, MAIN_PPO_V0, ONE_STEP_OFF, PARTIAL, GVPO, FLOWRL)
"""Trainers whose loop may be that of RayPPOTrainer."""
_IN_ORDER: Final = (
    "rows are trained on in the order of their prompts here, at most a version old; there as they "
    "end, however old"
)


def _fetch(verl: Verl) -> str:
    """Return the key of the prompts per step: some trainers train on all, main_dapo may filter."""
    is_dapo = verl.trainer in (DAPO, ENTROPY)
    is_all = (is_dapo and not verl["algorithm.filter_groups.enable"]) or not may_filter(verl)
    return _FETCHED if is_all and verl.is_given(_FETCHED) else _PROMPTS


def may_filter(verl: Verl) -> bool:
    """Return whether the trainer reads filter_groups; else a step trains on all fetched prompts."""
    return verl.trainer not in _MAY_FETCH or bool(verl["trainer.use_v1"])


def fetched_prompts(verl: Verl) -> int:
    """Return the prompts of one of verl's training steps."""
    if verl.trainer is not FULLY_ASYNC:
        return int(verl[_fetch(verl)])
    return int(verl[_PART] * verl[f"{_TRAINING}.require_batches"])


def step_prompts(verl: Verl) -> int:
    """Return the prompts per step, after which engines get new weights."""
    if verl.trainer is not FULLY_ASYNC:
        return fetched_prompts(verl)
    return int(fetched_prompts(verl) * verl[f"{_TRAINING}.trigger_parameter_sync_step"])


def prompts(verl: Verl, job: Draft) -> None:
    """Convert the prompts per step; of fully_async_main those between weight synchronizations."""
    if verl.trainer is not FULLY_ASYNC:
        job.set("spec.algorithm.promptsPerStep", fetched_prompts(verl), _fetch(verl))
        return
    factors = [f"{_TRAINING}.{one}" for one in ("trigger_parameter_sync_step", "require_batches")]
    job.set("spec.algorithm.promptsPerStep", step_prompts(verl), *factors)


def staleness(verl: Verl, job: Draft) -> None:
    """Convert the maximum staleness of rows, which is a fraction of a step for fully_async_main.

    The recipe partial_rollout generates the prompts of two steps, without such a limit.
    """
    field, share = "spec.rollout.maxStaleness", f"{_TRAINING}.staleness_threshold"
    partial = f"{_TRAINING}.partial_rollout"
    if verl.trainer is ONE_STEP_OFF:
        job.set(field, 1)
    if verl.trainer is PARTIAL:
        job.set(field, 1, partial)
        job.note(_IN_ORDER, partial)
    if verl.trainer is not FULLY_ASYNC:
        return
    asked = math.ceil(verl[share])
    versions = min(1, asked) if verl["algorithm.filter_groups.enable"] else asked
    job.set(field, versions, share)
    if versions < asked:
        job.note("1: with filter_groups the first round of one step is drawn ahead", share)
    elif versions > verl[share]:
        job.note("a share of a step there; all rows may be a whole version older here", share)
    if versions and verl[partial] != (versions > 1):
        why = "long rows go on with newer weights where spec.rollout.maxStaleness is above 1"
        job.note(why, partial)


def drawn_steps(verl: Verl) -> int | None:
    """Convert the length of fully_async_main, which is a total number of prompts."""
    if verl.trainer is not FULLY_ASYNC or not is_count(verl[DRAWN]):
        return None
    return int(max(1, verl[DRAWN] // max(1, step_prompts(verl))))
