"""Rewards and advantages of a step, from the columns of the whole batch.

Every owner of rows computes them for the whole batch and stores those of its rows. So estimators
with batch statistics are pure functions, and any layout gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import torch
from torch import Tensor

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.advantages import ADVANTAGES, OF_SCORES, Advantages
from ppojob_trainer.algorithms.distillation import DISTILLATION_LOSS, teacher_advantages
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.implicit_rewards import PROCESS_ADVANTAGES, implicit_reward_metrics
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
"""Last part of the random key, after seed and step."""


@dataclass(frozen=True)
class _Batch:
    """All rows of the step, in batch order, and what the controller says about them."""

    spec: PPOJobSpec
    rows: BatchRows  # those of this rank, which get the results
    given: Given
    lengths: Tensor  # (rows,) int64
    groups: Tensor  # (rows,) int64, the batch position of each row's prompt
    columns: dict[str, Tensor]  # (tokens,) each

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    @property
    def mask(self) -> Tensor:
        return self["mask"]

    @cached_property
    def turns(self) -> Turns:
        return Turns.of(self.mask, self.lengths, self.groups, self["anchors"])


def add_advantages(spec: PPOJobSpec, rows: BatchRows, given: Given) -> Advantaged:
    """Compute rewards and advantages, and store them in the rows; returns metrics.

    Scores are placed on the last trained tokens, and the KL penalty is subtracted. The rows get
    `token_rewards`, `advantages`, `returns`, and further columns that the job uses.
    """
    batch = _gather(spec, rows, given)
    if spec.leaves_responses_out:
        # Excluded rows leave their groups.
        batch.columns["mask"] = _without(batch.mask, given.dropped, batch.lengths)
        rows.set_column("update_mask", batch.mask)
    mask, lengths = batch.mask, batch.lengths
    certainty_rewards, metrics = _certainty(batch)
    shaped = [score + own for score, own in zip(given.scores, certainty_rewards, strict=True)]
    rewards = _place_rewards(batch, shaped)
    scores = row_sum(rewards, mask, lengths)
    rewards, kl = _charge_kl(batch, rewards)
    corrected, correction_metrics = _correct(batch)
    metrics |= correction_metrics
    kept = mask if corrected is None else corrected.mask
    masks = spec.algorithm.mask_truncated or given.masked
    trained = _without(kept, given.masked, lengths) if masks else kept
    weights = None if corrected is None else corrected.weights
    if spec.algorithm.estimator.has_pairs or spec.algorithm.reprompt is not None:
        kept = trained  # excluded rows are in no pair, or have no teacher
    estimated = _estimate(batch, rewards, kept, weights)
    if spec.algorithm.estimator.has_pairs:
        trained = trained & (estimated.advantages != 0)
    rows.set_column("token_rewards", rewards)
    rows.set_column("advantages", estimated.advantages)
    rows.set_column("returns", estimated.returns)
    if spec.algorithm.positive_examples is not None:
        is_positive = torch.zeros(len(lengths), dtype=torch.bool)
        is_positive[given.positives] = True
        rows.set_column("positives", is_positive.repeat_interleave(lengths))
    if spec.algorithm.estimator.has_teacher:
        metrics[DISTILLATION_LOSS] = -float(estimated.advantages[kept].mean())
    if (prime := spec.algorithm.prime) is not None:
        outcomes = torch.tensor(given.outcomes, dtype=torch.float64)
        columns = (batch["process_rewards"], outcomes, mask, lengths, batch.groups)
        metrics |= implicit_reward_metrics(*columns, beta=prime.beta, normalize=prime.normalize)
    if spec.algorithm.estimator.compares_turns:
        metrics["critic/turns_compared"] = batch.turns.shared
    metrics |= _choose_tokens(batch, trained, weights) | _choose_rows(batch, trained, scores)
    answer = Advantaged(
        row_rewards=row_sum(rewards, mask, lengths).tolist(),
        advantages=_spread(estimated.advantages, kept),
        returns=_spread(estimated.returns, kept),
        zero_signal_groups=_share_without_signal(batch, estimated.advantages),
        tokens_owned=rows.tokens_owned(),
        tokens_computed=rows.tokens_computed(),
        told=metrics,
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


def _without(mask: Tensor, rows: Sequence[int], lengths: Tensor) -> Tensor:
    """Return (tokens,) bool, the mask without some rows."""
    is_kept = torch.ones(len(lengths), dtype=torch.bool)
    is_kept[list(rows)] = False
    return mask & is_kept.repeat_interleave(lengths)


def _certainty(batch: _Batch) -> tuple[list[float], dict[str, float]]:
    """Return (rows,) the reward for the policy's certainty, and metrics of it."""
    settings, mask, lengths = batch.spec.algorithm.certainty_reward, batch.mask, batch.lengths
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
    metrics = Spread.of(means[has_some].tolist()).named("certainty_reward")
    return (settings.coefficient * means).tolist(), metrics


def _place_rewards(batch: _Batch, scores: Sequence[float]) -> Tensor:
    """Return (tokens,) float32: each row's score at its last trained token, plus turn rewards.

    verl places the score on the last token, where a row that ends in a tool's answer would lose it.
    A row without trained tokens has no reward.
    """
    mask, lengths, turn_rewards = batch.mask, batch.lengths, batch.columns.get("turn_rewards")
    has_some = row_count(mask, lengths) > 0
    rewards = torch.zeros(mask.shape) if turn_rewards is None else turn_rewards.clone()
    rewards[row_ends(mask, lengths)] += torch.tensor(scores, dtype=torch.float32)[has_some]
    return rewards


def _charge_kl(batch: _Batch, rewards: Tensor) -> tuple[Tensor, float | None]:
    """Subtract the KL penalty from the rewards; also return the mean KL of the rows, if any."""
    kl, mask, given = batch.spec.algorithm.kl, batch.mask, batch.given
    if kl.in_ != "reward":
        return rewards, None
    assert kl.estimator is not None, "set in a resolved configuration"
    estimates = kl_estimate(batch["old_logprobs"], batch["ref_logprobs"], kl.estimator, mask=mask)
    is_counted = torch.ones(len(batch.lengths), dtype=torch.bool)
    is_counted[given.dropped] = False
    mean = float(row_mean(estimates, mask, batch.lengths)[is_counted].mean())
    return apply_kl_penalty(rewards, estimates, given.kl_coefficient), mean


def _gather(spec: PPOJobSpec, rows: BatchRows, given: Given) -> _Batch:
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
    index, columns = rows.index, dict(zip(names, rows.gather(names), strict=True))
    if algorithm.estimator.compares_turns:
        (columns["anchors"],) = rows.gather_tensors([turn_anchors(rows.mine)])
    return _Batch(
        spec,
        rows,
        given,
        lengths=torch.tensor(index.lengths, dtype=torch.int64),
        groups=torch.arange(index.num_groups).repeat_interleave(index.samples),
        columns=columns,
    )


def _correct(batch: _Batch) -> tuple[Corrected | None, dict[str, float]]:
    algorithm = batch.spec.algorithm
    if not algorithm.is_corrected_before:
        return None, {}
    assert algorithm.rollout_correction is not None, "is_corrected_before"
    correction = Correction.of(**algorithm.rollout_correction.model_dump(by_alias=False))
    mask, given = batch.mask, batch.columns.get("given")
    generated = mask if given is None else mask & ~given
    columns = (batch["old_logprobs"], batch["rollout_logprobs"], generated, batch.lengths)
    corrected = correct(correction, *columns)
    metrics = diagnostics(correction, corrected, *columns)
    return corrected if given is None else corrected.beside(mask & given), metrics


def _choose_tokens(batch: _Batch, mask: Tensor, weights: Tensor | None) -> dict[str, float]:
    """Set the mask and the token weights of the updates; returns metrics.

    The updates train on `mask` (tokens,), with `weights` (tokens,) of the correction, None for 1,
    and weights by entropy. The rows' own mask stays: a restarted reference reads the rows again.
    """
    share, metrics = batch.spec.algorithm.high_entropy_share, dict[str, float]()
    if share < 1.0:
        chosen, threshold = high_entropy(batch["entropies"], mask, share)
        metrics["actor/entropy_threshold"] = threshold
        weights = chosen.float() if weights is None else weights * chosen
    if mask is not batch.mask:
        batch.rows.set_column("update_mask", mask)
    if weights is not None:
        batch.rows.set_column("loss_weights", weights)
    return metrics


def _choose_rows(batch: _Batch, mask: Tensor, scores: Tensor) -> dict[str, float]:
    """Resample the rows of the updates, if the job asks for it; returns metrics.

    Tokens outside of `mask` (tokens,) are excluded before; `scores` (rows,) are without the KL.
    Draws depend on the job's seed and the step.
    """
    resampling, lengths = batch.spec.algorithm.resampling, batch.lengths
    if resampling is None:
        return {}
    is_trained = row_count(mask, lengths) > 0
    weights = resampling_weights(
        scores, is_trained, method=resampling.method, power=resampling.power
    )
    key = (batch.spec.seed, batch.given.step, RESAMPLING)
    copies = drawn(weights, torch.from_numpy(uniform_draws(len(lengths), *key)))
    batch.rows.set_column("copies", copies.repeat_interleave(lengths))
    share = float((copies > 0).sum()) / max(1, int(is_trained.sum()))
    return {"training/resampling/distinct_share": share}


def _estimate(batch: _Batch, rewards: Tensor, kept: Tensor, weights: Tensor | None) -> Advantages:
    """Call the job's estimator with its options and columns.

    `kept` (tokens,) is the mask without the tokens that a correction rejects; `weights` (tokens,)
    are those of the correction, None for 1.
    """
    algorithm, kind = batch.spec.algorithm, batch.spec.algorithm.estimator
    columns = (rewards, batch.mask, batch.lengths, batch.groups)
    of_kept = (rewards, kept, batch.lengths, batch.groups)
    if kind.has_teacher:
        limit = algorithm.distillation.max_token_loss if algorithm.distillation else None
        return teacher_advantages(batch["old_logprobs"], batch["ref_logprobs"], kept, limit)
    if kind.has_pairs:  # without options of its own
        return ADVANTAGES[algorithm.type](*of_kept)
    if algorithm.custom is not None:
        return estimator_of(algorithm.custom)(*columns, kept=kept, **algorithm.custom.arguments)
    if kind.has_sum_pi_squared:
        probabilities = {name: batch[name] for name in ("old_logprobs", "sum_pi_squared")}
        return TOKEN_BASELINES[algorithm.type](*of_kept, **probabilities, rollout_weights=weights)
    if algorithm.prime is not None:
        weighed = {"process_weight", "outcome_weight", "normalize"}
        options = algorithm.prime.model_dump(by_alias=False, include=weighed)
        own = (rewards, batch["process_rewards"], *columns[1:])
        return PROCESS_ADVANTAGES[algorithm.type](*own, **options, kept=kept)
    options = algorithm.options.model_dump(by_alias=False) if algorithm.options is not None else {}
    if kind.critic == "value":
        return CRITIC_ADVANTAGES[algorithm.type](
            rewards, batch["values"], kept, batch.lengths, **options
        )
    if kind.compares_turns:
        return TURN_ADVANTAGES[algorithm.type](*columns, turns=batch.turns, **options, kept=kept)
    _set_columns(options, batch)
    if algorithm.type in OF_SCORES:
        return ADVANTAGES[algorithm.type](*columns, **options, kept=kept)
    return ADVANTAGES[algorithm.type](*of_kept, **options)


def _set_columns(options: dict[str, Any], batch: _Batch) -> None:
    """Add the controller's numbers that an estimator reads to its options."""
    kind, given = batch.spec.algorithm.estimator, batch.given
    if kind.has_greedy:
        options["greedy_scores"] = torch.tensor(given.greedy_scores)[batch.groups]
    if kind.tracks_values:
        options.clear()
        options["baselines"] = torch.tensor(given.baselines, dtype=torch.float64)[batch.groups]
    if kind.has_reward_keys:
        keys = options.pop("reward_keys")
        options["weights"] = torch.tensor(options.pop("reward_weights") or [1.0] * len(keys))
        options["rewards"] = torch.tensor(given.rewards)


def _share_without_signal(batch: _Batch, advantages: Tensor) -> float:
    """Return the share of prompts without a trained token of nonzero advantage."""
    is_silent = torch.ones(int(batch.groups[-1]) + 1, dtype=torch.bool)
    token_groups = batch.groups.repeat_interleave(batch.lengths)
    is_silent[token_groups[batch.mask & (advantages != 0)]] = False
    return int(is_silent.sum()) / len(is_silent)


def _spread(values: Tensor, mask: Tensor) -> Spread:
    trained = values[mask]
    if trained.numel() == 0:
        return Spread(float("nan"), float("nan"), float("nan"))
    return Spread(float(trained.mean()), float(trained.max()), float(trained.min()))
