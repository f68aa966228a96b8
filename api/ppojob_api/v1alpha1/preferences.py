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
    "discopop",
    "aot",
    "aot_unpaired",
    "cpo",
    "simpo",
    "orpo",
]

PairDivergence = Literal["reverse_kl", "forward_kl", "jsd", "alpha"]
PositiveWeight = Annotated[float, Field(gt=0, le=1_000_000)]


@dataclass(frozen=True, slots=True)
class PairLoss:
    """What a loss of pairs needs of a job."""

    has_reference: bool = True  # its rewards are relative to a reference
    is_mean: bool = False  # they are of the mean over the tokens of an answer, and not of the sum
    has_smoothing: bool = False  # it reads `labelSmoothing`
    has_margin: bool = False  # it reads `targetMargin`
    has_tau: bool = False  # it reads `discopopTau`
    # What it sorts over the mini-batch, before it compares what has the same rank: `margins` of
    # policy and reference, or `ratios` of chosen and rejected answers.
    sorts: Literal["margins", "ratios"] | None = None
    # The weight of the cross-entropy of the chosen answer, where none is given.
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
    "discopop": PairLoss(has_tau=True),
    "aot": PairLoss(has_smoothing=True, sorts="margins"),
    "aot_unpaired": PairLoss(has_smoothing=True, sorts="ratios"),
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

    loss_weights: Annotated[dict[str, PositiveWeight], Field(max_length=8)] = Field(
        default_factory=dict
    )
    """In place of lossType several losses and their weights in a sum: {sigmoid: 0.8, bco_pair: 0.2}
    (MPO: arXiv:2411.10442). TRL: loss_weights; its sft is sftWeight."""

    label_smoothing: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Probability that a pair is labelled the wrong way round: with sigmoid, cpo and simpo
    conservative DPO; 0 is 0.001 with exo_pair. TRL: label_smoothing, 0."""

    target_margin: Annotated[float, Field(ge=0, le=1_000)] | None = None
    """With simpo, the target margin between the rewards of the chosen and the rejected answer;
    absent: 0.5. TRL: simpo_gamma, 0.5."""

    sft_weight: Coefficient | None = None
    """Weight of the cross entropy of the chosen answer, the mean over its tokens (RPO:
    arXiv:2404.19733); absent: 1 with cpo and orpo, else 0. TRL: rpo_alpha, none; cpo_alpha, 1."""

    tail_weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Weight of tokens behind the length of the shorter answer (LD-DPO: arXiv:2409.06411). TRL:
    ld_alpha, none."""

    divergence: PairDivergence = "reverse_kl"
    """Divergence from the reference that limits the policy (f-DPO: arXiv:2309.16240). TRL:
    f_divergence_type, reverse_kl."""

    divergence_alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With alpha: 0 would be forward_kl, 1 reverse_kl; absent: 0.5. TRL: f_alpha_divergence_coef,
    0.5."""

    weight_by_policy: bool = False
    """Weight pairs by how likely the policy generates them (WPO: arXiv:2406.11827). TRL:
    use_weighting, false."""

    discopop_tau: Annotated[float, Field(gt=0, le=1)] | None = None
    """Temperature of discopop; absent: 0.05. TRL: discopop_tau, 0.05."""

    @property
    def weighted(self) -> dict[DpoLossType, float]:
        """The weights of the losses that are summed, at least one, in the order of the table."""
        if not self.loss_weights:
            return {self.loss_type: 1.0}
        return {one: self.loss_weights[one] for one in PAIR_LOSSES if one in self.loss_weights}

    @property
    def needs(self) -> tuple[PairLoss, ...]:
        """What each of them needs."""
        return tuple(PAIR_LOSSES[one] for one in self.weighted)

    @property
    def has_reference(self) -> bool:
        """Whether rewards are relative to a reference: those of all losses are, or none."""
        return self.needs[0].has_reference

    @property
    def is_mean(self) -> bool:
        """Whether reported rewards are means over the tokens, as those of all losses are."""
        return all(one.is_mean for one in self.needs)

    @property
    def sorts(self) -> Literal["margins", "ratios"] | None:
        """What the loss sorts; one that does stands alone."""
        return self.needs[0].sorts

    @property
    def own_sft_weight(self) -> float:
        """`sft_weight`, or where that is absent the largest of the losses."""
        if self.sft_weight is None:
            return max(one.sft_weight for one in self.needs)
        return self.sft_weight


class KtoSpec(Section):
    """Settings of type kto (arXiv:2402.01306), for single answers."""

    beta: Annotated[float, Field(gt=0, le=1_000)] = 0.1
    """Strength of the reference: rewards are beta times the log-ratio to it. TRL: beta, 0.1."""

    loss_type: Literal["kto", "apo_zero_unpaired", "bco"] = "kto"
    """kto: rewards are compared with an estimate of the KL to the reference; apo_zero_unpaired:
    with 0 (arXiv:2408.06266); bco: with their mean so far, by a classifier's loss
    (arXiv:2404.04656). TRL: loss_type, kto."""

    desirable_weight: Coefficient = 1.0
    """Weight of the loss of good answers. TRL: desirable_weight, 1."""

    undesirable_weight: Coefficient = 1.0
    """Weight of the loss of bad answers. TRL: undesirable_weight, 1."""


class RewardModelTrainingSpec(Section):
    """Settings of type reward_model: the Bradley-Terry loss on pairs (arXiv:2203.02155)."""

    centering: Coefficient = 0.0
    """Weight of the squared sum of a pair's rewards, which keeps rewards around 0
    (arXiv:2312.09244). TRL: center_rewards_coefficient, none."""
