"""The table of policy losses."""

from typing import Final

from ppojob_trainer.algorithms.policy_losses.bypass import bypass
from ppojob_trainer.algorithms.policy_losses.cispo import cispo
from ppojob_trainer.algorithms.policy_losses.clip import clip
from ppojob_trainer.algorithms.policy_losses.covariance import clip_cov, kl_cov
from ppojob_trainer.algorithms.policy_losses.dppo import dppo_kl, dppo_tv
from ppojob_trainer.algorithms.policy_losses.dro import dro
from ppojob_trainer.algorithms.policy_losses.flowrl import flowrl
from ppojob_trainer.algorithms.policy_losses.geo_mean import geo_mean
from ppojob_trainer.algorithms.policy_losses.gpg import gpg
from ppojob_trainer.algorithms.policy_losses.group_variance import gvpo, trajectory_balance
from ppojob_trainer.algorithms.policy_losses.gspo import gspo
from ppojob_trainer.algorithms.policy_losses.inputs import PolicyLoss
from ppojob_trainer.algorithms.policy_losses.prime_rl import ipo, prime_rl
from ppojob_trainer.algorithms.policy_losses.sapo import sapo
from ppojob_trainer.algorithms.policy_losses.vespo import vespo

_KL: Final = "actor/ppo_kl"
_CLIPPED: Final = "actor/pg_clipfrac"
_CLIPPED_LOWER: Final = "actor/pg_clipfrac_lower"
_CHOSEN: Final = "actor/pg_covfrac"
_LOG_Z: Final = "actor/log_z"

# Covariances depend on all tokens, and penalties have a gradient also where the advantage is zero.
POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clip": PolicyLoss(clip, (_CLIPPED, _CLIPPED_LOWER, _KL), vanishes_without_advantage=True),
    "dppo_tv": PolicyLoss(
        dppo_tv, (_CLIPPED, _CLIPPED_LOWER, _KL), vanishes_without_advantage=True
    ),
    "dppo_kl": PolicyLoss(
        dppo_kl, (_CLIPPED, _CLIPPED_LOWER, _KL), vanishes_without_advantage=True
    ),
    "gspo": PolicyLoss(gspo, (_CLIPPED, _KL), vanishes_without_advantage=True),
    "sapo": PolicyLoss(sapo, (_KL,), vanishes_without_advantage=True),
    "gpg": PolicyLoss(gpg, (_KL,), vanishes_without_advantage=True),
    "clip_cov": PolicyLoss(clip_cov, (_CLIPPED, _CHOSEN, _KL)),
    "kl_cov": PolicyLoss(kl_cov, (_CHOSEN, _KL)),
    "geo_mean": PolicyLoss(geo_mean, (_CLIPPED, _KL), vanishes_without_advantage=True),
    "dro": PolicyLoss(dro, (_KL,)),
    "cispo": PolicyLoss(cispo, (_CLIPPED, _KL), vanishes_without_advantage=True),
    "vespo": PolicyLoss(vespo, (_KL,), vanishes_without_advantage=True),
    "prime_rl": PolicyLoss(prime_rl, (_CLIPPED, _KL)),
    "ipo": PolicyLoss(ipo, (_CLIPPED, _KL)),
    "gvpo": PolicyLoss(gvpo, (_KL,)),
    "trajectory_balance": PolicyLoss(trajectory_balance, (_KL, _LOG_Z)),
    "flowrl": PolicyLoss(flowrl, (_KL, _LOG_Z)),
    "bypass": PolicyLoss(bypass, (_CLIPPED, _CLIPPED_LOWER, _KL), vanishes_without_advantage=True),
}
"""Policy losses by `spec.algorithm.policyLoss.type`."""
