"""Correction for the engine that samples: weights of tokens, and what is not trained on."""

from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Items, Section

RejectionMode = Literal[
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]

RATIO_MODES: Final = ("token_k1", "seq_sum_k1", "seq_mean_k1")
"""Modes with bounds on both sides, which are ratios; the others have a largest divergence."""

Bound = Annotated[float, Field(gt=0, le=1_000_000)]


class RejectionSpec(Section):
    """What is left out of the updates, by the distance of engine and trainer."""

    mode: RejectionMode
    """Which divergence (k1: log-ratio, k2: half its square, k3: r - 1 - log r), and whether tokens
    are left out by their own or whole responses by its sum, mean or maximum.
    verl: of rollout_rs one."""

    low: Bound | None = None
    """With k1, the least ratio of engine to trainer; absent: 1 / high.
    verl: of rollout_rs_threshold the first of a pair."""

    high: Bound
    """With k1, the largest ratio of engine to trainer; with k2 and k3, the largest divergence.
    verl: of rollout_rs_threshold the only number, or the second of a pair."""


class RolloutCorrectionSpec(Section):
    """Weights and rejection by the ratio of trainer to engine (https://richardli.xyz/rl-collapse).

    The trainer's policy is that which the step begins with; with policyLoss.type bypass it is the
    one in the update. An empty section measures the distance and changes nothing.
    """

    weights: Literal["none", "token", "sequence"] = "none"
    """Whose ratio the loss of a token is multiplied by: its own, or that of the whole response.
    verl: rollout_correction.rollout_is, null."""

    weight_limit: Bound = 2.0
    """Weights above count as this; with weightFloor as 0.
    verl: rollout_correction.rollout_is_threshold, 2."""

    weight_floor: Bound | None = None
    """Weights below count as 0, and so do those above weightLimit (IcePop, arXiv:2510.18855);
    absent: no such bound. verl: of rollout_is_threshold the first of a pair."""

    normalize: bool = False
    """Divide weights by their mean over the batch, with policyLoss.type bypass over a micro-batch.
    verl: rollout_correction.rollout_is_batch_normalize, false."""

    rejection: Annotated[Items[RejectionSpec], Field(max_length=11)] = ()
    """What is left out of the updates: a token stays if every entry keeps it."""
