"""Settings of training on judged answers: losses of pairs, of single answers, of reward models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Coefficient, Section

DpoLossType = Literal[
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "cpo",
    "simpo",
    "orpo",
]


@dataclass(frozen=True, slots=True)
class PairLoss:
    """What a loss of pairs needs of a job.

    Attributes:
        has_reference: its rewards are relative to a reference.
        is_mean: they are of the mean over the tokens of an answer, and not of the sum.
        has_smoothing: it reads `labelSmoothing`.
        has_margin: it reads `targetMargin`.
        sft_weight: the weight of the cross-entropy of the chosen answer, where none is given.
    """

    has_reference: bool = True
    is_mean: bool = False
    has_smoothing: bool = False
    has_margin: bool = False
    sft_weight: float = 0.0


PAIR_LOSSES: Final[Mapping[DpoLossType, PairLoss]] = {
    "sigmoid": PairLoss(has_smoothing=True),
    "sigmoid_norm": PairLoss(is_mean=True),
    "hinge": PairLoss(),
    "ipo": PairLoss(is_mean=True),
    "robust": PairLoss(has_smoothing=True),
    "exo_pair": PairLoss(has_smoothing=True),
    "nca_pair": PairLoss(),
    "bco_pair": PairLoss(),
    "sppo_hard": PairLoss(),
    "apo_zero": PairLoss(),
    "apo_down": PairLoss(),
    "cpo": PairLoss(has_reference=False, has_smoothing=True, sft_weight=1.0),
    "simpo": PairLoss(has_reference=False, is_mean=True, has_smoothing=True, has_margin=True),
    "orpo": PairLoss(has_reference=False, is_mean=True, sft_weight=1.0),
}
"""Every loss of pairs by its `lossType`; the trainer's table of that name has what it computes."""


class DpoSpec(Section):
    """Settings of type dpo (arXiv:2305.18290), a loss on pairs.

    They apply to type online_dpo too, whose pairs are generated.
    """

    beta: Annotated[float, Field(gt=0, le=1_000)] = 0.1
    """Strength of the reference: rewards are beta times the log-ratio to it; without a reference,
    beta times the policy's log-probability; with orpo, the weight of the odds. SimPO: 2 to 2.5.
    TRL: beta, 0.1."""

    loss_type: DpoLossType = "sigmoid"
    """sigmoid is DPO; cpo, simpo and orpo need no reference. docs/recipes.md lists all, with their
    papers. TRL: loss_type, sigmoid."""

    label_smoothing: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Probability that a pair is labelled the wrong way round: with sigmoid, cpo and simpo
    conservative DPO; 0 is 0.001 with exo_pair. TRL: label_smoothing, 0."""

    target_margin: Annotated[float, Field(ge=0, le=1_000)] | None = None
    """With simpo, the target margin between the rewards of the chosen and the rejected answer;
    absent: 0.5. TRL: simpo_gamma, 0.5."""

    sft_weight: Coefficient | None = None
    """Weight of the cross entropy of the chosen answer, the mean over its tokens (RPO:
    arXiv:2404.19733); absent: 1 with cpo and orpo, else 0. TRL: rpo_alpha, none; cpo_alpha, 1."""

    @property
    def loss(self) -> PairLoss:
        """What the loss needs."""
        return PAIR_LOSSES[self.loss_type]

    @property
    def own_sft_weight(self) -> float:
        """`sft_weight`, or where that is absent the loss's."""
        return self.loss.sft_weight if self.sft_weight is None else self.sft_weight


class KtoSpec(Section):
    """Settings of type kto (arXiv:2402.01306), for single answers."""

    beta: Annotated[float, Field(gt=0, le=1_000)] = 0.1
    """Strength of the reference: rewards are beta times the log-ratio to it. TRL: beta, 0.1."""

    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """kto: rewards are compared with an estimate of the KL to the reference; apo_zero_unpaired:
    with 0 (arXiv:2408.06266). TRL: loss_type, kto."""

    desirable_weight: Coefficient = 1.0
    """Weight of the loss of good answers. TRL: desirable_weight, 1."""

    undesirable_weight: Coefficient = 1.0
    """Weight of the loss of bad answers. TRL: undesirable_weight, 1."""


class RewardModelTrainingSpec(Section):
    """Settings of type reward_model: the Bradley-Terry loss on pairs (arXiv:2203.02155)."""

    centering: Coefficient = 0.0
    """Weight of the squared sum of a pair's rewards, which keeps rewards around 0
    (arXiv:2312.09244). TRL: center_rewards_coefficient, none."""
