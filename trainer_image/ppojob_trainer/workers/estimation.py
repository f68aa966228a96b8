"""Reward and advantage estimation of a step, from the columns of the whole batch.

Every owner of rows does this for the whole batch and keeps what belongs to its rows. So estimators
with batch statistics stay pure functions, and any layout gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch
from torch import Tensor

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.advantages import ADVANTAGES, OF_SCORES, Advantages
from ppojob_trainer.algorithms.distillation import DISTILLATION_LOSS, teacher_advantages
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.implicit_rewards import (
    PROCESS_ADVANTAGES,
    implicit_reward_metrics,
)
from ppojob_trainer.algorithms.kl import apply_kl_penalty, kl_estimate
from ppojob_trainer.algorithms.masked import row_count, row_ends, row_mean, row_sum
from ppojob_trainer.algorithms.resampling import drawn, resampling_weights
from ppojob_trainer.algorithms.rollout_correction import Corrected, Correction, correct
from ppojob_trainer.algorithms.rollout_diagnostics import diagnostics
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES
from ppojob_trainer.algorithms.token_masks import high_entropy
from ppojob_trainer.algorithms.turn_advantages import TURN_ADVANTAGES, Turns
from ppojob_trainer.algorithms.value_loss import explained_variance
from ppojob_trainer.data.order import uniform_draws
from ppojob_trainer.engine.custom_functions import estimator_of
from ppojob_trainer.metrics.step_metrics import Spread
from ppojob_trainer.rows.experience import turn_anchors
from ppojob_trainer.rpc.messages.training import Advantaged
from ppojob_trainer.rpc.messages.training import Advantages as Given
from ppojob_trainer.workers.batch_rows import BatchRows

RESAMPLING = 2409
"""Follows seed and step in the random key, so that no other draw of a job has the same key."""


@dataclass(frozen=True)
class _Batch:
    """Columns of all rows of the step, in batch order."""

    lengths: Tensor  # (rows,) int64
    groups: Tensor  # (rows,) int64, the batch position of each row's prompt
    columns: dict[str, Tensor]  # (tokens,) each

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    @cached_property
    def turns(self) -> Turns:
        """Return the turns of the rows."""
        return Turns.of(self["mask"], self.lengths, self.groups, self["anchors"])


def add_advantages(spec: PPOJobSpec, rows: BatchRows, given: Given) -> Advantaged:
    """Place scores on the last trained tokens, subtract the KL penalty, estimate advantages.

    The rows get `token_rewards`, `advantages` and `returns`, and further columns that the job uses.
    """
    batch = _gather(spec, rows)
    if spec.leaves_responses_out:
        _leave_out(rows, batch, given.dropped)
    mask, lengths = batch["mask"], batch.lengths
    certain, sureness = _certainty(spec, batch)
    shaped = [score + own for score, own in zip(given.scores, certain, strict=True)]
    rewards = _place_rewards(shaped, mask, lengths, batch.columns.get("turn_rewards"))
    scores = row_sum(rewards, mask, lengths)
    rewards, kl = _charge_kl(spec, batch, rewards, given)
    corrected, told = _correct(spec, batch)
    told |= sureness
    kept = mask if corrected is None else corrected.mask
    masks = spec.algorithm.mask_truncated or given.masked
    trained = _without(kept, given.masked, lengths) if masks else kept
    weights = None if corrected is None else corrected.weights
    if spec.algorithm.estimator.has_pairs or spec.algorithm.reprompt is not None:
        kept = trained  # excluded rows are in no pair, or have no teacher
    estimated = _estimate(spec, batch, rewards, given, kept, weights)
    if spec.algorithm.estimator.has_pairs:
        trained = trained & (estimated.advantages != 0)
    rows.keep("token_rewards", rewards)
    rows.keep("advantages", estimated.advantages)
    rows.keep("returns", estimated.returns)
    _keep_positives(spec, rows, given, lengths)
    if spec.algorithm.estimator.has_teacher:
        told[DISTILLATION_LOSS] = -float(estimated.advantages[kept].mean())
    if (prime := spec.algorithm.prime) is not None:
        outcomes = torch.tensor(given.outcomes, dtype=torch.float64)
        columns = (batch["process_rewards"], outcomes, mask, lengths, batch.groups)
        told |= implicit_reward_metrics(*columns, beta=prime.beta, normalize=prime.normalize)
    if spec.algorithm.estimator.compares_turns:
        told["critic/turns_compared"] = batch.turns.shared
    told |= _choose_tokens(spec, rows, batch, trained, weights)
    told |= _choose_rows(spec, rows, trained, lengths, scores, given.step)
    answer = Advantaged(
        row_rewards=row_sum(rewards, mask, lengths).tolist(),
        advantages=_spread(estimated.advantages, kept),
        returns=_spread(estimated.returns, kept),
        zero_signal_groups=_share_without_signal(batch, estimated.advantages),
        tokens_owned=rows.tokens_owned(),
        tokens_computed=rows.tokens_computed(),
        told=told,
        kl=kl,
        row_advantages=row_mean(estimated.advantages, kept, lengths).tolist(),
        without_tokens=(row_count(mask, lengths) == 0).nonzero().flatten().tolist(),
    )
    if spec.algorithm.estimator.critic != "value":
        return answer
    return msgspec.structs.replace(
        answer,
        values=_spread(batch["values"], kept),
        explained_variance=float(explained_variance(batch["values"], estimated.returns, kept)),
    )


def _leave_out(rows: BatchRows, batch: _Batch, dropped: Sequence[int]) -> None:
    """Mask all tokens of excluded rows; a row without trained tokens leaves its group."""
    batch.columns["mask"] = _without(batch["mask"], dropped, batch.lengths)
    rows.keep("update_mask", batch["mask"])


def _keep_positives(spec: PPOJobSpec, rows: BatchRows, given: Given, lengths: Tensor) -> None:
    """Mark the rows that scored well, if a loss reads that."""
    if spec.algorithm.positive_examples is not None:
        is_positive = torch.zeros(len(lengths), dtype=torch.bool)
        is_positive[given.positives] = True
        rows.keep("positives", is_positive.repeat_interleave(lengths))


def _without(mask: Tensor, rows: Sequence[int], lengths: Tensor) -> Tensor:
    """Return (tokens,) bool: the mask, False at all tokens of some rows."""
    is_kept = torch.ones(len(lengths), dtype=torch.bool)
    is_kept[list(rows)] = False
    return mask & is_kept.repeat_interleave(lengths)


def _certainty(spec: PPOJobSpec, batch: _Batch) -> tuple[list[float], dict[str, float]]:
    """Return (rows,) the reward for the policy's certainty, and metrics of it."""
    settings, mask, lengths = spec.algorithm.certainty_reward, batch["mask"], batch.lengths
    if settings is None:
        return [0.0] * len(lengths), {}
    has_some = row_count(mask, lengths) > 0
    if settings.type == "answer_probability":  # the same value at all tokens of a row
        means = torch.zeros(len(lengths))
        means[has_some] = batch["answer_probabilities"][row_ends(mask, lengths)]
    else:
        is_entropy = settings.type == "negative_entropy"
        tokens = -batch["entropies"] if is_entropy else batch["certainties"]
        means = row_mean(tokens, mask, lengths)
    told = Spread.of(means[has_some].tolist()).named("certainty_reward")
    return (settings.coefficient * means).tolist(), told


def _place_rewards(
    scores: Sequence[float], mask: Tensor, lengths: Tensor, turn_rewards: Tensor | None
) -> Tensor:
    """Return (tokens,) float32 rewards: each row's score at its last trained token, and its turns'.

    verl places the score on the last token: a row that ends in tokens which the policy did not
    write, such as the answer of a tool, would lose it, for masked tokens give no reward. A row
    without trained tokens has none, as it has no gradient.
    """
    has_some = row_count(mask, lengths) > 0
    rewards = torch.zeros(mask.shape) if turn_rewards is None else turn_rewards.clone()
    rewards[row_ends(mask, lengths)] += torch.tensor(scores, dtype=torch.float32)[has_some]
    return rewards


def _charge_kl(
    spec: PPOJobSpec, batch: _Batch, rewards: Tensor, given: Given
) -> tuple[Tensor, float | None]:
    """Subtract the KL penalty from the rewards; return the rows' mean KL too, None without it."""
    if spec.algorithm.kl.in_ != "reward":
        return rewards, None
    mask, estimator = batch["mask"], spec.algorithm.kl.estimator
    assert estimator is not None, "a resolved configuration says which estimator"
    estimates = kl_estimate(batch["old_logprobs"], batch["ref_logprobs"], estimator, mask=mask)
    is_counted = torch.ones(len(batch.lengths), dtype=torch.bool)
    is_counted[given.dropped] = False
    kl = float(row_mean(estimates, mask, batch.lengths)[is_counted].mean())
    return apply_kl_penalty(rewards, estimates, given.kl_coefficient), kl


def _gather(spec: PPOJobSpec, rows: BatchRows) -> _Batch:
    """Gather the columns that the job's rewards and estimator read."""
    algorithm = spec.algorithm
    in_reward, squares = algorithm.kl.in_ == "reward", algorithm.estimator.has_sum_pi_squared
    of_teacher = algorithm.estimator.has_teacher
    corrected = algorithm.is_corrected_before
    wanted = {
        "mask": True,
        "old_logprobs": in_reward or squares or corrected or of_teacher,
        "ref_logprobs": in_reward or of_teacher,
        "sum_pi_squared": squares,
        "values": algorithm.estimator.critic == "value",
        "process_rewards": algorithm.estimator.critic == "process_reward",
        "turn_rewards": rows.mine.turn_rewards is not None,
        "entropies": algorithm.reads_entropies,
        "certainties": algorithm.reads_certainties,
        "answer_probabilities": algorithm.answer_reward is not None,
        "rollout_logprobs": corrected,
        "given": corrected and algorithm.guidance is not None,
    }
    names = [name for name, is_read in wanted.items() if is_read]
    index, columns = rows.index, dict(zip(names, rows.whole(names), strict=True))
    if algorithm.estimator.compares_turns:
        (columns["anchors"],) = rows.gathered([turn_anchors(rows.mine)])
    return _Batch(
        lengths=torch.tensor(index.lengths, dtype=torch.int64),
        groups=torch.arange(index.num_groups).repeat_interleave(index.samples),
        columns=columns,
    )


def _correct(spec: PPOJobSpec, batch: _Batch) -> tuple[Corrected | None, dict[str, float]]:
    """Compute the correction between the policy before the step and the engine, and its metrics."""
    algorithm = spec.algorithm
    if not algorithm.is_corrected_before:
        return None, {}
    assert algorithm.rollout_correction is not None, "it is corrected by something"
    correction = Correction.of(**algorithm.rollout_correction.model_dump(by_alias=False))
    mask, given = batch["mask"], batch.columns.get("given")
    drawn = mask if given is None else mask & ~given
    columns = (batch["old_logprobs"], batch["rollout_logprobs"], drawn, batch.lengths)
    corrected = correct(correction, *columns)
    told = diagnostics(correction, corrected, *columns)
    return corrected if given is None else corrected.beside(mask & given), told


def _choose_tokens(
    spec: PPOJobSpec, rows: BatchRows, batch: _Batch, mask: Tensor, weights: Tensor | None
) -> dict[str, float]:
    """Mask tokens out of the updates, and weight them also by entropy; returns metrics of it.

    The updates train on `mask` (tokens,), with the `weights` (tokens,) of the correction, None for
    1. It becomes the `update_mask`. The rows' own mask stays, because a reference that is lost
    during the updates reads the rows once more.
    """
    algorithm, told = spec.algorithm, dict[str, float]()
    if algorithm.high_entropy_share < 1.0:
        chosen, threshold = high_entropy(batch["entropies"], mask, algorithm.high_entropy_share)
        told["actor/entropy_threshold"] = threshold
        weights = chosen.float() if weights is None else weights * chosen
    if mask is not batch["mask"]:
        rows.keep("update_mask", mask)
    if weights is not None:
        rows.keep("loss_weights", weights)
    return told


def _choose_rows(
    spec: PPOJobSpec,
    rows: BatchRows,
    mask: Tensor,
    lengths: Tensor,
    scores: Tensor,
    step: int,
) -> dict[str, float]:
    """Resample the rows that the updates train on, if the job asks for it; returns metrics of it.

    Tokens outside of `mask` (tokens,) are already excluded; `scores` (rows,) are without the KL.
    The draws follow from the job's seed and the step.
    """
    resampling = spec.algorithm.resampling
    if resampling is None:
        return {}
    is_trained = row_count(mask, lengths) > 0
    weights = resampling_weights(
        scores, is_trained, method=resampling.method, power=resampling.power
    )
    draws = torch.from_numpy(uniform_draws(len(lengths), spec.seed, step, RESAMPLING))
    copies = drawn(weights, draws)
    rows.keep("copies", copies.repeat_interleave(lengths))
    share = float((copies > 0).sum()) / max(1, int(is_trained.sum()))
    return {"training/resampling/distinct_share": share}


def _estimate(
    spec: PPOJobSpec,
    batch: _Batch,
    rewards: Tensor,
    given: Given,
    kept: Tensor,
    weights: Tensor | None,
) -> Advantages:
    """Call the job's estimator with its own options, and the columns that it reads.

    Of the mask, `kept` (tokens,) is what no correction rejects; `weights` (tokens,) are those of
    the correction, None for 1.
    """
    algorithm = spec.algorithm
    if algorithm.estimator.has_teacher:
        limit = algorithm.distillation.max_token_loss if algorithm.distillation else None
        return teacher_advantages(batch["old_logprobs"], batch["ref_logprobs"], kept, limit)
    if algorithm.estimator.has_pairs:  # whose options are those of the loss
        return ADVANTAGES[algorithm.type](rewards, kept, batch.lengths, batch.groups)
    if algorithm.custom is not None:
        columns = (rewards, batch["mask"], batch.lengths, batch.groups)
        return estimator_of(algorithm.custom)(*columns, kept=kept, **algorithm.custom.arguments)
    return _estimate_by_options(spec, batch, rewards, given, kept, weights)


def _estimate_by_options(
    spec: PPOJobSpec,
    batch: _Batch,
    rewards: Tensor,
    given: Given,
    kept: Tensor,
    weights: Tensor | None,
) -> Advantages:
    """Call an estimator whose keyword arguments are its options; otherwise as `_estimate`."""
    algorithm = spec.algorithm
    own = algorithm.options.model_dump(by_alias=False) if algorithm.options is not None else {}
    if algorithm.estimator.has_greedy:
        own["greedy_scores"] = torch.tensor(given.greedy_scores)[batch.groups]
    if algorithm.estimator.tracks_values:
        own = {"baselines": torch.tensor(given.baselines, dtype=torch.float64)[batch.groups]}
    if algorithm.estimator.has_reward_keys:
        keys = own.pop("reward_keys")
        own["weights"] = torch.tensor(own.pop("reward_weights") or [1.0] * len(keys))
        own["rewards"] = torch.tensor(given.rewards)
    mask, lengths = batch["mask"], batch.lengths
    if algorithm.prime is not None:
        weighed = {"process_weight", "outcome_weight", "normalize"}
        own = algorithm.prime.model_dump(by_alias=False, include=weighed)
        return PROCESS_ADVANTAGES[algorithm.type](
            rewards, batch["process_rewards"], mask, lengths, batch.groups, **own, kept=kept
        )
    if algorithm.estimator.critic == "value":
        return CRITIC_ADVANTAGES[algorithm.type](rewards, batch["values"], kept, lengths, **own)
    if algorithm.estimator.has_sum_pi_squared:
        probabilities = {name: batch[name] for name in ("old_logprobs", "sum_pi_squared")}
        columns = (rewards, kept, lengths, batch.groups)
        return TOKEN_BASELINES[algorithm.type](*columns, **probabilities, rollout_weights=weights)
    if algorithm.estimator.compares_turns:
        columns = (rewards, mask, lengths, batch.groups)
        return TURN_ADVANTAGES[algorithm.type](*columns, turns=batch.turns, **own, kept=kept)
    if algorithm.type in OF_SCORES:
        own["kept"] = kept
    else:
        mask = kept
    return ADVANTAGES[algorithm.type](rewards, mask, lengths, batch.groups, **own)


def _share_without_signal(batch: _Batch, advantages: Tensor) -> float:
    """Return the share of prompts without any trained token of nonzero advantage."""
    is_silent = torch.ones(int(batch.groups[-1]) + 1, dtype=torch.bool)
    token_groups = batch.groups.repeat_interleave(batch.lengths)
    is_silent[token_groups[batch["mask"] & (advantages != 0)]] = False
    return int(is_silent.sum()) / len(is_silent)


def _spread(values: Tensor, mask: Tensor) -> Spread:
    trained = values[mask]
    if trained.numel() == 0:
        return Spread(float("nan"), float("nan"), float("nan"))
    return Spread(float(trained.mean()), float(trained.max()), float(trained.min()))
