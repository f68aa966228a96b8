"""Self-Play Preference Optimization, SPPO (arXiv:2405.00675): an estimator and a policy loss.

Plain functions of tensors. Columns are flat, the tokens of all responses one after the other;
`lengths` has the tokens of each response, and `groups` the prompt that it answers.
"""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_count, row_sum
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs


def win_rate(
    token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor, *, beta: float = 1.0
) -> Tensor:
    """How likely a response is preferred to another of its prompt, less 1/2.

    A = mean over the group of sigmoid(beta (s_i - s_j)) - 1/2: preferences by the model of Bradley
    and Terry, where scores are given instead of pairs. A response of which nothing is trained has
    no score, and is nobody's peer.
    """
    scores = row_sum(token_rewards.double(), mask, lengths)
    are_scored = row_count(mask, lengths) > 0
    are_peers = (groups[:, None] == groups[None, :]) & are_scored[None, :]
    wins = torch.sigmoid(beta * (scores[:, None] - scores[None, :])) - 0.5
    advantages = (wins * are_peers).sum(1) / are_peers.sum(1).clamp(min=1)
    return torch.repeat_interleave(advantages, lengths)


def sppo(inputs: LossInputs, *, eta: float = 1.0) -> Tensor:
    """L = (log ratio of the response - eta A)^2, the same on every token of the response.

    With `lossAggregation: sequence_mean_token_mean` it is a mean over responses. A response of
    advantage 0 has a gradient too, which holds it where it was.
    """
    log_ratio = row_sum(inputs.log_ratio(), inputs.mask, inputs.lengths)
    per_token = torch.repeat_interleave(log_ratio, inputs.lengths)
    return (per_token - eta * inputs.advantages).square()
