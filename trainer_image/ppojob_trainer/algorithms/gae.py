"""Generalized advantage estimation (GAE), with the values of a critic."""

from collections.abc import Callable

import torch
from torch import Tensor

from ppojob_trainer.algorithms.advantages import Advantages
from ppojob_trainer.algorithms.masked import discounted_sum, row_count, whiten


@torch.no_grad()
def gae(
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    lengths: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    critic_lambda: float | None = None,
    length_adaptive_alpha: float | None = None,
    whiten_rewards: bool = False,
) -> Advantages:
    """Compute exponentially weighted sums of temporal-difference errors.

    Schulman et al. (arXiv:1506.02438), equations 10 and 16, over the trained tokens of a row: `δ_t
    = r_t + γ V_{t+1} - V_t`, `Â_t = δ_t + γλ Â_{t+1}`, with V = Â = 0 after the last one. The
    critic's targets are `R_t = Â_t + V_t`; the advantages are Â whitened over the step. With
    `critic_lambda` the targets have a λ of their own: decoupled GAE (VC-PPO, arXiv:2503.01491).
    With `length_adaptive_alpha`, α, the advantages have the λ `1 - 1 / (α l)` in a row of l trained
    tokens, at least 0 (VAPO, arXiv:2504.05118). With `whiten_rewards` r_t is `mean + (r_t - mean) /
    sqrt(var + 1e-8)` over all trained tokens, as in TRL. `values` (tokens,) are V_t before the
    critic's update. Masked tokens (tool output) are skipped, as in verl.

    Departs from verl: both results are 0 at masked tokens, where verl repeats the neighbours'
    numbers; a step with a single trained token gives advantage 0, where verl raises an error.
    """
    rewards, known = (column.to(torch.float64)[mask] for column in (token_rewards, values))
    if whiten_rewards and len(rewards):
        rewards = rewards.mean() + whiten(rewards, torch.ones_like(rewards, dtype=torch.bool))
    trained = row_count(mask, lengths)
    following = known.roll(-1)
    following[trained.cumsum(0)[trained > 0] - 1] = 0.0
    errors = rewards + gamma * following - known
    advantages, returns = (rewards.new_zeros(mask.shape) for _ in range(2))
    of_policy: float | Tensor = lam
    if length_adaptive_alpha is not None:
        of_policy = (1.0 - 1.0 / (length_adaptive_alpha * trained.to(rewards.dtype))).clamp(min=0.0)
    of_critic = lam if critic_lambda is None else critic_lambda
    advantages[mask] = discounted_sum(errors, trained, gamma * of_policy)
    returns[mask] = discounted_sum(errors, trained, gamma * of_critic) + known
    dtype = token_rewards.dtype
    return Advantages(whiten(advantages, mask).to(dtype), returns.to(dtype))


CRITIC_ADVANTAGES: dict[str, Callable[..., Advantages]] = {"ppo": gae}
"""Estimators with the values of a critic, by `spec.algorithm.type`."""
