"""The mathematics of the update: pure functions of tensors, one file an idea.

Nothing here knows a configuration, a device or a process: what an algorithm needs comes in as an
argument. The visible tables of names (`ADVANTAGES`, `POLICY_LOSSES`, `AGGREGATIONS`, `KL`) are what
a PPOJob may ask for; docs/algorithms.md explains each.
"""

from ppojob_trainer.algorithms.advantages import ADVANTAGES, Advantages
from ppojob_trainer.algorithms.aggregate import AGGREGATIONS, aggregate
from ppojob_trainer.algorithms.kl import KL, KlController, apply_kl_penalty, kl_estimate
from ppojob_trainer.algorithms.logprobs import token_logprobs
from ppojob_trainer.algorithms.policy_loss import POLICY_LOSSES, TokenLoss

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "KL",
    "POLICY_LOSSES",
    "Advantages",
    "KlController",
    "TokenLoss",
    "aggregate",
    "apply_kl_penalty",
    "kl_estimate",
    "token_logprobs",
]
