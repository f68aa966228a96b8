"""Compares an implementation with the literal forms; raises AssertionError where they differ.

The implementation is an argument: the tests of the algorithms pass the product's modules, the test
of planted errors passes modules with one line changed and expects the AssertionError. Masked tokens
hold a NaN wherever the implementation is given the mask.
"""

import itertools
import math
from collections.abc import Callable
from types import ModuleType

import literal_algorithms as literal
import literal_process_rewards as literal_prime
import torch
from ragged_batches import Batch
from torch import Tensor

from ppojob_trainer.algorithms import kl

AGGREGATIONS = (
    "token_mean",
    "token_sum",
    "sequence_mean_token_sum",
    "sequence_mean_token_sum_norm",
    "sequence_mean_token_mean",
)
DISCOUNTS = ((1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.5, 0.0))
VALUE_CLIPS = (0.5, 0.1, 3.0)
GROUP_CASES = (
    ("grpo", {}),
    ("grpo", {"normalize_by_std": False}),
    ("grpo_passk", {}),
    ("grpo_passk", {"normalize_by_std": False}),
    ("gpg", {}),
    ("maxrl", {}),
    ("online_dpo", {}),
    ("reinforce", {}),
    ("rloo", {}),
    ("opo", {}),
    ("reinforce_plus_plus_baseline", {}),
)
ESTIMATORS = ("k1", "k2", "k3", "abs", "k1+", "k3+", "abs+")


def assert_close(actual: Tensor, expected: list[float], tolerance: float = 1e-6) -> None:
    """Every |actual - expected| is at most tolerance * max(1, |expected|)."""
    values = actual.detach().flatten().tolist()
    assert len(values) == len(expected)
    for i, (a, b) in enumerate(zip(values, expected, strict=True)):
        assert math.isfinite(a), f"entry {i}: {a}"
        assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"entry {i}: {a} is not {b}"


def flatten(column: list[list[float]]) -> list[float]:
    return [value for row in column for value in row]


def tokens_of(batch: Batch, *columns: str) -> list[tuple]:
    """One tuple a token, of the named columns."""
    return list(zip(*(flatten(getattr(batch, name)) for name in columns), strict=True))


def slope(function: Callable[..., float], at: float, *rest: object) -> float:
    """Derivative by the first argument, by central differences: off by 1e-9 of the third one."""
    step = 3e-5
    return (function(at + step, *rest) - function(at - step, *rest)) / (2.0 * step)


def compare_advantages(advantages: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    rewards, mask, groups = batch.rewards, batch.mask, batch.groups
    columns = (
        batch.flat_poisoned("rewards", dtype),
        batch.flat_mask,
        batch.lengths,
        batch.row_groups,
    )
    kept = torch.tensor(flatten(batch.kept), dtype=torch.bool)
    for left, own in ((None, {}), (batch.kept, {"kept": kept})):
        for name, options in GROUP_CASES:
            result = advantages.ADVANTAGES[name](*columns, **options, **own)
            expected = flatten(getattr(literal, name)(rewards, mask, groups, **options, kept=left))
            assert_close(result.advantages, expected)
            assert_close(result.returns, expected)
        values = [(number % 4) / 4 for number in groups]
        result = advantages.ADVANTAGES["spo"](*columns, baselines=torch.tensor(values), **own)
        assert_close(result.advantages, flatten(literal.spo(rewards, mask, groups, values, left)))
    greedy = [number % 3 - 0.5 for number in groups]
    result = advantages.ADVANTAGES["remax"](*columns, greedy_scores=torch.tensor(greedy))
    assert_close(result.advantages, flatten(literal.remax(rewards, mask, greedy)))
    assert_close(result.returns, flatten(literal.discounted_returns(rewards, mask, 1.0)))
    _compare_gdpo(advantages, batch, columns)
    for gamma in (1.0, 0.9):
        result = advantages.ADVANTAGES["reinforce_plus_plus"](*columns, gamma=gamma)
        assert_close(result.returns, flatten(literal.discounted_returns(rewards, mask, gamma)))
        expected = literal.reinforce_plus_plus(rewards, mask, groups, gamma)
        assert_close(result.advantages, flatten(expected))


def _compare_gdpo(advantages: ModuleType, batch: Batch, columns: tuple[Tensor, ...]) -> None:
    """Rewards of very different size: what a row earns, and a hundredth of something else."""
    earned = [total or 0.0 for total in literal.scores(batch.rewards, batch.mask)]
    other = [sum(row) / 128 for row in batch.values]
    for rewards, weights in (([earned, other], [1.0, -0.5]), ([other], [2.0])):
        for normalize in (True, False):
            result = advantages.ADVANTAGES["gdpo"](
                *columns,
                rewards=torch.tensor(rewards, dtype=torch.float64),
                weights=torch.tensor(weights),
                normalize_by_std=normalize,
            )
            expected = literal.gdpo(rewards, weights, batch.mask, batch.groups, normalize)
            assert_close(result.advantages, flatten(expected), 1e-5)
            assert torch.equal(result.advantages, result.returns)
    left = torch.tensor(flatten(batch.kept), dtype=torch.bool)
    given = {"rewards": torch.tensor([earned], dtype=torch.float64), "weights": torch.ones(1)}
    result = advantages.ADVANTAGES["gdpo"](*columns, **given, kept=left)
    expected = literal.gdpo([earned], [1.0], batch.mask, batch.groups, kept=batch.kept)
    assert_close(result.advantages, flatten(expected), 1e-5)


def compare_token_baselines(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    columns = (
        batch.flat_poisoned("rewards", dtype),
        batch.flat_mask,
        batch.lengths,
        batch.row_groups,
    )
    probabilities = {
        "old_logprobs": batch.flat_poisoned("old_logprobs", dtype),
        "sum_pi_squared": batch.flat_poisoned("squares", dtype),
    }
    squared_away = [[abs(value) for value in row] for row in batch.new_values]
    for weights in (None, squared_away):
        given = None if weights is None else torch.tensor(flatten(weights), dtype=dtype)
        for name, estimator in module.TOKEN_BASELINES.items():
            result = estimator(*columns, **probabilities, rollout_weights=given)
            expected = literal.token_baseline(
                batch.rewards,
                batch.mask,
                batch.groups,
                batch.old_logprobs,
                batch.squares,
                weights,
                name.startswith("tir"),
            )
            # A place whose weights add up to next to nothing has a baseline of that.
            assert_close(result.advantages, flatten(expected), 1e-5)
            returns = literal.discounted_returns(batch.rewards, batch.mask, 1.0)
            assert_close(result.returns, flatten(returns))


def compare_turns(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    rewards = batch.flat_poisoned("rewards", dtype)
    columns = (batch.flat_mask, batch.lengths, batch.row_groups)
    anchors = [[(7 * t + 3 * i) % 3 for t in range(len(row))] for i, row in enumerate(batch.mask)]
    given = torch.tensor(flatten(anchors), dtype=torch.int64)
    turns = module.Turns.of(*columns, given)
    left = torch.tensor(flatten(batch.kept), dtype=torch.bool)
    for weight, gamma in ((1.0, 0.95), (0.5, 1.0), (2.0, 0.0)):
        for normalize in (True, False):
            for kept, own in ((None, {}), (batch.kept, {"kept": left})):
                result = module.TURN_ADVANTAGES["gigpo"](
                    rewards,
                    *columns,
                    turns=turns,
                    turn_weight=weight,
                    gamma=gamma,
                    normalize_by_std=normalize,
                    **own,
                )
                expected = literal.gigpo(
                    *(batch.rewards, batch.mask, batch.groups, anchors),
                    *(weight, gamma, normalize, kept),
                )
                # Sums of turns that are equal but for rounding are divided by 1e-6.
                assert_close(result.advantages, flatten(expected), 1e-5)


def compare_process_rewards(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    rewards = batch.flat_poisoned("rewards", dtype)
    process = batch.flat_poisoned("values", dtype)
    columns = (batch.flat_mask, batch.lengths, batch.row_groups)
    left = torch.tensor(flatten(batch.kept), dtype=torch.bool)
    for weights in ((5.0, 5.0), (2.0, 0.0)):
        for normalize in (True, False):
            for kept, own in ((None, {}), (batch.kept, {"kept": left})):
                result = module.PROCESS_ADVANTAGES["prime"](
                    rewards,
                    process,
                    *columns,
                    process_weight=weights[0],
                    outcome_weight=weights[1],
                    normalize=normalize,
                    **own,
                )
                advantages, returns = literal_prime.prime(
                    *(batch.rewards, batch.values, batch.mask, batch.groups),
                    *(*weights, normalize, kept),
                )
                assert_close(result.returns, flatten(returns), 1e-5)
                # Where all are next to equal, whitening makes digits of rounding.
                assert_close(result.advantages, flatten(advantages), 1e-4)


def compare_outcomes(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    outcomes = [(number % 5) / 4 for number in range(len(batch.mask))]
    totals = [sum(row) for row in batch.values]
    given = torch.tensor(totals, dtype=dtype), torch.tensor(outcomes, dtype=dtype)
    loss = list(map(literal_prime.outcome_loss, totals, outcomes))
    assert_close(module.outcome_loss(*given), loss, 1e-5)
    columns = (batch.flat_mask, batch.lengths, batch.row_groups)
    for normalize in (True, False):
        found = module.implicit_reward_metrics(
            batch.flat_poisoned("values", dtype),
            torch.tensor(outcomes, dtype=torch.float64),
            *columns,
            beta=0.5,
            normalize=normalize,
        )
        expected = literal_prime.metrics(
            batch.values, outcomes, batch.mask, batch.groups, 0.5, normalize
        )
        assert found.keys() == expected.keys()
        assert_close(torch.tensor(list(found.values())), list(expected.values()), 1e-5)


def compare_gae(gae: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    columns = (
        batch.flat_poisoned("rewards", dtype),
        batch.flat_poisoned("values", dtype),
        batch.flat_mask,
        batch.lengths,
    )
    whitened = literal.whitened_rewards(batch.rewards, batch.mask)
    for (gamma, lam), whitens in itertools.product(DISCOUNTS, (False, True)):
        own = {"gamma": gamma, "lam": lam, "whiten_rewards": whitens}
        result = gae.CRITIC_ADVANTAGES["ppo"](*columns, **own)
        rewards = whitened if whitens else batch.rewards
        advantages, returns = literal.gae(rewards, batch.values, batch.mask, gamma, lam)
        assert_close(result.returns, flatten(returns))
        assert_close(result.advantages, flatten(literal.whiten(advantages, batch.mask)))


def compare_decoupled_gae(gae: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    """Critic and policy with a λ of their own, that of the policy by the length of the row."""
    columns = (
        batch.flat_poisoned("rewards", dtype),
        batch.flat_poisoned("values", dtype),
        batch.flat_mask,
        batch.lengths,
    )
    literals = (batch.rewards, batch.values, batch.mask)
    for gamma, critic, alpha in ((1.0, 1.0, None), (0.9, 0.7, 0.4), (1.0, None, 2.0)):
        result = gae.CRITIC_ADVANTAGES["ppo"](
            *columns, gamma=gamma, lam=0.8, critic_lambda=critic, length_adaptive_alpha=alpha
        )
        own = 0.8 if alpha is None else literal.length_adaptive_lambdas(batch.mask, alpha)
        advantages, _ = literal.gae(*literals, gamma, own)
        _, returns = literal.gae(*literals, gamma, 0.8 if critic is None else critic)
        assert_close(result.returns, flatten(returns))
        assert_close(result.advantages, flatten(literal.whiten(advantages, batch.mask)))


def compare_penalized_gae(gae: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    """From log-probabilities to advantages: KL in the reward, masked tokens in between."""
    new, ref = (batch.flat_poisoned(name, dtype) for name in ("logprobs", "ref_logprobs"))
    estimate = kl.kl_estimate(new, ref, "k1", mask=batch.flat_mask)
    rewards = kl.apply_kl_penalty(batch.flat("rewards", dtype), estimate, 0.25)
    values = batch.flat_poisoned("values", dtype)
    result = gae.gae(rewards, values, batch.flat_mask, batch.lengths, gamma=0.9, lam=0.8)
    penalized = [
        [r - 0.25 * literal.kl(p, q, "k1") for r, p, q in zip(*row, strict=True)]
        for row in zip(batch.rewards, batch.logprobs, batch.ref_logprobs, strict=True)
    ]
    advantages, returns = literal.gae(penalized, batch.values, batch.mask, 0.9, 0.8)
    assert_close(result.returns, flatten(returns))
    assert_close(result.advantages, flatten(literal.whiten(advantages, batch.mask)))


def compare_value_loss(value_loss: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    names = ("new_values", "values", "returns")
    tokens = tokens_of(batch, *names, "mask")
    columns = [batch.flat_poisoned(name, dtype) for name in names]
    for limit in VALUE_CLIPS:
        given = {"value_clip": limit, "mask": batch.flat_mask}
        loss, is_clipped = value_loss.clipped_value_loss(*columns, **given)
        expected = [literal.value_loss(v, o, r, limit) if m else 0.0 for v, o, r, m in tokens]
        assert_close(loss, expected)
        flags = [m and literal.value_is_clipped(v, o, r, limit) for v, o, r, m in tokens]
        assert is_clipped.tolist() == flags
    explained = value_loss.explained_variance(columns[1], columns[2], batch.flat_mask)
    expected = literal.explained_variance(batch.values, batch.returns, batch.mask)
    assert_close(explained, [expected])


def compare_value_gradient(value_loss: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    names = ("new_values", "values", "returns")
    tokens = tokens_of(batch, *names, "mask")
    # No difference of two multiples of 1/64 is such a limit, so no token sits on its kink.
    for limit in (0.505, 0.107, 3.003):
        new, old, returns = (batch.flat_poisoned(name, dtype) for name in names)
        new.requires_grad_()
        loss, _ = value_loss.clipped_value_loss(
            new, old, returns, value_clip=limit, mask=batch.flat_mask
        )
        assert loss.requires_grad
        (gradient,) = torch.autograd.grad(loss.sum(), new)
        expected = [
            slope(literal.value_loss, v, o, r, limit) if m else 0.0 for v, o, r, m in tokens
        ]
        assert_close(gradient, expected)


def compare_aggregate(aggregate: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    values = batch.flat_poisoned("advantages", dtype)
    for mode in AGGREGATIONS:
        result = aggregate.aggregate(
            values,
            batch.flat_mask,
            batch.lengths,
            mode,
            global_tokens=17.0,
            global_sequences=5.0,
            scale_tokens=32.0,
        )
        expected = literal.aggregate(batch.advantages, batch.mask, mode, 17.0, 5.0, 32.0)
        assert_close(result, [expected])


def compare_kl(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    new, ref = (batch.flat_poisoned(name, dtype) for name in ("logprobs", "ref_logprobs"))
    tokens = tokens_of(batch, "logprobs", "ref_logprobs", "rewards", "mask")
    for estimator in ESTIMATORS:
        result = module.kl_estimate(new, ref, estimator, mask=batch.flat_mask)
        value = estimator.removesuffix("+")
        expected = [literal.kl(p, q, value) if m else 0.0 for p, q, _, m in tokens]
        assert_close(result, expected)
        penalized = module.apply_kl_penalty(batch.flat("rewards", dtype), result, 0.25)
        assert_close(
            penalized, [r - 0.25 * k for (_, _, r, _), k in zip(tokens, expected, strict=True)]
        )


def compare_kl_gradient(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    tokens = tokens_of(batch, "logprobs", "ref_logprobs", "mask")
    for estimator in ESTIMATORS:
        new, ref = (batch.flat_poisoned(name, dtype) for name in ("logprobs", "ref_logprobs"))
        new.requires_grad_()
        value = module.kl_estimate(new, ref, estimator, mask=batch.flat_mask)
        assert value.requires_grad
        (gradient,) = torch.autograd.grad(value.sum(), new)
        sloped = "k2" if estimator.endswith("+") else estimator
        expected = [slope(literal.kl, p, q, sloped) if m else 0.0 for p, q, m in tokens]
        assert_close(gradient, expected)


def compare_logprobs(fused: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    """Takes the log-probability columns as if each token had those three logits and a one."""
    columns = (batch.logprobs, batch.old_logprobs, batch.ref_logprobs)
    rows = [[*logits, 1.0] for logits in zip(*map(flatten, columns), strict=True)]
    targets = [i % 4 for i in range(len(rows))]
    for temperature in (1.0, 0.5, 1.7):
        told = fused.fused_logprobs(
            torch.tensor(rows, dtype=dtype).reshape(-1, 4),
            torch.eye(4, dtype=dtype),
            torch.tensor(targets, dtype=torch.int64),
            fused.LogprobSettings(temperature, entropy="value", squares=True, certainty=True),
        )
        expected = [
            literal.logprob_and_more(row, target, temperature)
            for row, target in zip(rows, targets, strict=True)
        ]
        for actual, *column in zip(told, *expected, strict=True):
            assert_close(actual, column)
