"""Preference losses of pairs: chosen answers c and rejected answers r.

All map `chosen` and `rejected`, (pairs,), to losses, (pairs,). Both are log-ratios `log(pi(y|x) /
pi_ref(y|x))`, or `log pi(y|x)` in a loss without a reference: summed over the tokens of an answer
or, where `PairLoss.is_mean` is set, averaged. m is the margin `beta (chosen - rejected)`, s the
logistic function, e the label smoothing. Numbers are those of TRL's `DPOTrainer`, `CPOTrainer` and
`ORPOTrainer`, without cross-entropies.

Divergences other than the reverse KL are applied first (`DIVERGENCES`). AOT compares answers of
equal rank instead of those of one pair.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def sigmoid(
    chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """`-(1 - e) log s(m) - e log s(-m)`: DPO (Rafailov et al. 2023, arXiv:2305.18290, equation 7).

    Without a reference it is CPO (Xu et al. 2024, arXiv:2401.08417, equation 7); with means, the
    length-normalized DPO of Tulu 3 (Lambert et al. 2024, arXiv:2411.15124).
    """
    margins = beta * (chosen - rejected)
    wrong = label_smoothing * logsigmoid(-margins)
    return -(1.0 - label_smoothing) * logsigmoid(margins) - wrong


def hinge(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`max(0, 1 - m)`: SLiC (Zhao et al. 2023, arXiv:2305.10425)."""
    return torch.relu(1.0 - beta * (chosen - rejected))


def ipo(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`(m / beta - 1 / (2 beta))^2` (Azar et al. 2023, arXiv:2310.12036, equation 17).

    With mean log-ratios, which its authors corrected in TRL.
    """
    return (chosen - rejected - 1.0 / (2.0 * beta)).square()


def robust(
    chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """`(-(1 - e) log s(m) + e log s(-m)) / (1 - 2 e)`, unbiased if a share e of pairs is flipped.

    Robust DPO (Chowdhury et al. 2024, arXiv:2403.00409, equation 12).
    """
    margins = beta * (chosen - rejected)
    wrong = label_smoothing * logsigmoid(-margins)
    right = -(1.0 - label_smoothing) * logsigmoid(margins)
    return (right + wrong) / (1.0 - 2.0 * label_smoothing)


def exo_pair(
    chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """`s(m) log(s(m) / (1 - e)) + s(-m) log(s(-m) / e)`: the reverse KL to the smoothed label.

    EXO (Ji et al. 2024, arXiv:2402.00856, equation 16); e = 0 becomes 0.001, as in TRL.
    """
    margins, wrong = beta * (chosen - rejected), label_smoothing or 1e-3
    agrees = margins.sigmoid() * (logsigmoid(margins) - math.log1p(-wrong))
    return agrees + (-margins).sigmoid() * (logsigmoid(-margins) - math.log(wrong))


def nca_pair(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`-log s(beta c) - (log s(-beta c) + log s(-beta r)) / 2`.

    NCA (Chen et al. 2024, arXiv:2402.05369, equation 12).
    """
    good, bad = beta * chosen, beta * rejected
    return -logsigmoid(good) - 0.5 * (logsigmoid(-good) + logsigmoid(-bad))


def bco_pair(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`-log s(beta c) - log s(-beta r)`: a classifier of good and bad answers.

    BCO (Jung et al. 2024, arXiv:2404.04656) without the reward shift, as in TRL.
    """
    return -logsigmoid(beta * chosen) - logsigmoid(-beta * rejected)


def sppo_hard(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`(c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2`.

    SPPO (Wu et al. 2024, arXiv:2405.00675, equation 4.6), with a win probability of 1 for chosen
    ones.
    """
    return (chosen - 0.5 / beta).square() + (rejected + 0.5 / beta).square()


def apo_zero(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`1 - s(beta c) + s(beta r)`, for chosen answers better than the policy's.

    APO (D'Oosterlinck et al. 2024, arXiv:2408.06266, equation 7).
    """
    return (-beta * chosen).sigmoid() + (beta * rejected).sigmoid()


def apo_down(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`s(beta c) + 1 - s(m)`, for chosen answers worse than the policy's.

    APO (D'Oosterlinck et al. 2024, arXiv:2408.06266, equation 8).
    """
    return (beta * chosen).sigmoid() + (beta * (rejected - chosen)).sigmoid()


def discopop(chosen: Tensor, rejected: Tensor, *, beta: float, tau: float = 0.05) -> Tensor:
    """`-(1 - s(m / t)) log s(m) + s(m / t) exp(-m)`, t the temperature `tau`, at most 1.

    DiscoPOP (Lu et al. 2024, arXiv:2406.08414, equation 5).
    """
    margins = beta * (chosen - rejected)
    # One exponent: exp(-m) alone may overflow where its factor is 0.
    exponential = torch.exp(logsigmoid(margins / tau) - margins)
    return exponential - (-margins / tau).sigmoid() * logsigmoid(margins)


def simpo(
    chosen: Tensor,
    rejected: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    target_margin: float = 0.5,
) -> Tensor:
    """`-log s(m - target_margin)` of mean log-probabilities, without a reference.

    SimPO (Meng et al. 2024, arXiv:2405.14734, equation 6).
    """
    lowered = chosen - target_margin / beta
    return sigmoid(lowered, rejected, beta=beta, label_smoothing=label_smoothing)


def orpo(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """`-beta log s(log(odds_c / odds_r))`, `odds = p / (1 - p)`, of mean log-probabilities.

    ORPO (Hong et al. 2024, arXiv:2403.07691, equations 4 and 7).
    """
    # The bound keeps the gradient finite for p = 1.
    sure = -torch.finfo(chosen.dtype).eps
    odds = [one - torch.log(-torch.expm1(one.clamp(max=sure))) for one in (chosen, rejected)]
    return -beta * logsigmoid(odds[0] - odds[1])


PAIR_LOSSES: Final[dict[str, Callable[..., Tensor]]] = {
    "sigmoid": sigmoid,
    "sigmoid_norm": sigmoid,
    "hinge": hinge,
    "ipo": ipo,
    "robust": robust,
    "exo_pair": exo_pair,
    "nca_pair": nca_pair,
    "bco_pair": bco_pair,
    "sppo_hard": sppo_hard,
    "apo_zero": apo_zero,
    "apo_down": apo_down,
    "discopop": discopop,
    "aot": sigmoid,
    "aot_unpaired": sigmoid,
    "cpo": sigmoid,
    "simpo": simpo,
    "orpo": orpo,
}
"""Losses of pairs by `spec.algorithm.dpo.lossType`."""


def alpha_divergence(log_ratios: Tensor, alpha: float) -> Tensor:
    """`f'(u) = (u^(alpha - 1) - 1) / (alpha - 1)`: 1 - 1 / u for 0, towards log u for 1.

    `alpha` is TRL's, 1 minus the paper's. Exponents are at most 80, as in TRL.
    """
    power = alpha - 1.0
    return torch.expm1((power * log_ratios).clamp(max=80.0)) / power


DIVERGENCES: Final[dict[str, Callable[[Tensor, float], Tensor]]] = {
    "reverse_kl": lambda log_ratios, _: log_ratios,
    "forward_kl": lambda log_ratios, _: alpha_divergence(log_ratios, 0.0),
    "jsd": lambda log_ratios, _: logsigmoid(log_ratios) + math.log(2.0),  # log(2 u / (1 + u))
    "alpha": alpha_divergence,
}
"""`f'(u)` of each divergence from log u, u = pi / pi_ref: f-DPO (arXiv:2309.16240, table 1).

It is 0 for u = 1; TRL drops the constants, which cancel in margins.
"""


def of_equal_rank(values: Tensor, others: Tensor) -> Tensor:
    """Return for each value the one of `others` with the same rank: (n,) from (n,) and (n,)."""
    ranks = values.argsort(stable=True).argsort()
    return others.sort().values[ranks]
