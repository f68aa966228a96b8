"""Policy losses, the settings of each in a section of its own; and the correction for engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from ppojob_api.v1alpha1.section import Arguments, CodeSource, Items, Name, Section

PolicyLossType = Literal[
    "clip",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
    "vespo",
    "prime_rl",
    "ipo",
    "gvpo",
    "trajectory_balance",
    "flowrl",
    "bypass",
    "custom",
]

ClipRange = Annotated[float, Field(gt=0, lt=1)]
WideClipRange = Annotated[float, Field(gt=0, le=1_000)]
Share = Annotated[float, Field(gt=0, le=1)]
Covariance = Annotated[float, Field(ge=-1_000, le=1_000)]
GateTemperature = Annotated[float, Field(gt=0, le=1_000)]
KernelNumber = Annotated[float, Field(gt=0, le=1_000)]
SquareWeight = Annotated[float, Field(ge=0, le=1_000_000)]
RatioLimit = Annotated[float, Field(gt=1, le=1_000_000)]
Beta = Annotated[float, Field(gt=0, le=1_000_000)]


class DppoTvSpec(Section):
    """Settings of type dppo_tv (arXiv:2602.04879): binary total variation."""

    divergence_low: ClipRange = 0.15
    """With a negative advantage, mask a token whose probability fell by more than this. verl:
    clip_ratio_low, in its example of this loss 0.15."""

    divergence_high: ClipRange = 0.15
    """With a positive advantage, mask a token whose probability rose by more than this. verl:
    clip_ratio_high, in its example of this loss 0.15."""

    ratio_limit: RatioLimit = 20.0
    """Larger ratios are clipped to this. verl: clip_ratio_c, meant to be 20, in effect 3."""


class DppoKlSpec(Section):
    """Settings of type dppo_kl (arXiv:2602.04879): binary KL divergence."""

    divergence_low: WideClipRange = 0.05
    """With a negative advantage, mask a token whose probability fell and whose KL is above this.
    verl: clip_ratio_low, in its example of this loss 0.05."""

    divergence_high: WideClipRange = 0.05
    """With a positive advantage, mask a token whose probability rose and whose KL is above this.
    verl: clip_ratio_high, in its example of this loss 0.05."""

    ratio_limit: RatioLimit = 20.0
    """Larger ratios are clipped to this. verl: clip_ratio_c, meant to be 20, in effect 3."""


class GspoSpec(Section):
    """Settings of type gspo (arXiv:2507.18071)."""

    clip_low: ClipRange = 0.0003
    """A response's ratio is clipped below at 1 - clipLow. The paper, section 5.1: 3e-4.
    verl: clip_ratio_low, 0.2."""

    clip_high: WideClipRange = 0.0004
    """A response's ratio is clipped above at 1 + clipHigh. The paper, section 5.1: 4e-4.
    verl: clip_ratio_high, 0.2."""


class SapoSpec(Section):
    """Settings of type sapo (arXiv:2511.20347)."""

    tau_positive: GateTemperature = 1.0
    """How steeply the gate closes with a positive advantage. verl: tau_pos, 1."""

    tau_negative: GateTemperature = 1.05
    """How steeply the gate closes with a negative advantage. verl: tau_neg, 1.05."""


class ClipCovSpec(Section):
    """Settings of type clip_cov (arXiv:2505.22617)."""

    share: Share = 0.0002
    """Share of the tokens that lose their gradient, at least one. verl: clip_cov_ratio, 0.0002."""

    covariance_low: Covariance = 1.0
    """Only tokens with a higher covariance are candidates. verl: clip_cov_lb, 1."""

    covariance_high: Covariance = 5.0
    """Only tokens with a lower covariance are candidates. verl: clip_cov_ub, 5."""

    clip_low: WideClipRange = 0.2
    """The ratio is clipped below at 1 - clipLow; 1 or more: not at all.
    verl: clip_ratio_low, 0.2."""

    clip_high: WideClipRange = 0.2
    """The ratio is clipped above at 1 + clipHigh. verl: clip_ratio_high, 0.2."""


class KlCovSpec(Section):
    """Settings of type kl_cov (arXiv:2505.22617)."""

    share: Share = 0.0002
    """Share of the tokens that get a KL penalty: those of the highest covariance, at least one.
    verl: kl_cov_ratio, 0.0002."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Weight of that KL penalty to the old policy. The paper: 1. verl: ppo_kl_coef, 0.1."""


class GeoMeanSpec(Section):
    """Settings of type geo_mean (GMPO: arXiv:2507.20673)."""

    clip_low: WideClipRange = 0.4
    """A token's log-ratio is clipped below at -clipLow. The paper: 0.4.
    verl: clip_ratio_low, 0.2."""

    clip_high: WideClipRange = 0.4
    """A token's log-ratio is clipped above at clipHigh. The paper: 0.4.
    verl: clip_ratio_high, 0.2."""


class DroSpec(Section):
    """Settings of type dro (arXiv:2405.19107), which requires them."""

    beta: Beta
    """Weight of the squared log-ratio. verl: dro_beta, which has no default either."""


class CispoSpec(Section):
    """Settings of type cispo (MiniMax-M1: arXiv:2506.13585)."""

    clip_low: WideClipRange = 1.0
    """The weight is clipped below at 1 - clipLow; 1 or more: not at all, as in the paper.
    verl: clip_ratio_low, 0.2, in its example of this loss 10."""

    clip_high: WideClipRange = 0.2
    """The weight is clipped above at 1 + clipHigh. verl: clip_ratio_high, 0.2."""


class VespoSpec(Section):
    """Settings of type vespo (arXiv:2602.10693); defaults are TRL's."""

    k_positive: KernelNumber = 2.0
    """With an advantage of at least 0, the exponent of the response's ratio in its weight."""

    lambda_positive: KernelNumber = 3.0
    """With an advantage of at least 0, how fast the weight decays as the ratio grows."""

    k_negative: KernelNumber = 3.0
    """With a negative advantage, the exponent of the response's ratio in its weight."""

    lambda_negative: KernelNumber = 2.0
    """With a negative advantage, how fast the weight decays as the ratio grows."""


class PrimeRlSpec(Section):
    """Settings of type prime_rl, prime-rl's default loss, with its defaults."""

    divergence_low: ClipRange = 0.2
    """With a negative advantage, mask a token whose probability fell by more than this below the
    sampler's. prime-rl: dppo_mask_low."""

    divergence_high: ClipRange = 0.2
    """With a positive advantage, mask a token whose probability rose by more than this above the
    sampler's. prime-rl: dppo_mask_high."""

    kl_coefficient: SquareWeight = 0.001
    """Weight of the squared log-ratio to the sampler; 0: none. prime-rl: kl_tau."""


class IpoSpec(Section):
    """Settings of type ipo, prime-rl's loss of that name, with its defaults."""

    divergence: ClipRange = 0.1
    """Mask a token whose probability differs by more than this from the sampler's. prime-rl:
    ipo_threshold."""

    kl_coefficient: SquareWeight = 0.001
    """Weight of the squared log-ratio to the sampler; 0: none. prime-rl: kl_tau."""


class GvpoSpec(Section):
    """Settings of type gvpo (arXiv:2504.19599)."""

    beta: Beta = 0.1
    """Weight of the KL to the policy before the step. verl: gvpo_beta, 0.1."""


class TrajectoryBalanceSpec(Section):
    """Settings of type trajectory_balance (TBA: arXiv:2503.18929)."""

    beta: Beta = 0.012
    """Weight of the KL to the reference. TBA's code: kl_coef, initially 0.012."""


class FlowrlSpec(Section):
    """Settings of type flowrl (arXiv:2509.15207)."""

    beta: Beta = 15.0
    """Weight of the advantage against the mean log-ratio of a token. FlowRL and its recipe: 15."""

    ratio_limit: RatioLimit = 10.0
    """Upper bound of the ratios of whole responses, which weigh them. FlowRL's recipe: 10."""


class BypassSpec(Section):
    """Settings of type bypass: the sampler is the old policy."""

    form: Literal["clip", "reinforce"] = "clip"
    """clip: the clipped loss, with clipLow, clipHigh and dualClip; reinforce: the policy gradient,
    with the weights of rolloutCorrection. verl: rollout_correction.loss_type, ppo_clip."""


class CustomSpec(Section):
    """Your own function in a Python file; it runs in the ranks of actorRollout."""

    source: CodeSource
    """Where it comes from; one of path and configMap. verl: external_lib."""

    function: Name
    """Its name in the file; docs/algorithms.md describes its arguments and result."""

    arguments: Arguments = Field(default_factory=dict)
    """Keyword arguments of every call; null values are omitted."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a policy loss needs of a job."""

    # The section of its settings, a field of `PolicyLossSpec` of the loss's name.
    options: type[Section] | None = None
    # It is a mean over responses by definition, so no other aggregation than
    # sequence_mean_token_mean means anything.
    means_of_responses: bool = False
    may_be_sums: bool = False  # nor any other than that and sequence_mean_token_sum
    # Its ratios are those to the sampler, whose log-probabilities stand for those of the policy
    # before the step.
    is_of_sampler: bool = False
    # It compares the responses of a prompt, which are computed together: two at least.
    compares_group: bool = False
    # It is one number a response, so weights of tokens count by their mean over it.
    is_of_rows: bool = False
    has_reference: bool = False  # it compares the policy with the reference
    learns_log_z: bool = False  # a network beside the policy learns log Z of each prompt by it


LOSSES: Final[Mapping[PolicyLossType, Loss]] = {
    "clip": Loss(),
    "dppo_tv": Loss(DppoTvSpec),
    "dppo_kl": Loss(DppoKlSpec),
    "gspo": Loss(GspoSpec, may_be_sums=True),
    "sapo": Loss(SapoSpec, means_of_responses=True),
    "gpg": Loss(),
    "clip_cov": Loss(ClipCovSpec),
    "kl_cov": Loss(KlCovSpec),
    "geo_mean": Loss(GeoMeanSpec, means_of_responses=True, is_of_rows=True),
    "dro": Loss(DroSpec),
    "cispo": Loss(CispoSpec),
    "vespo": Loss(VespoSpec),
    "prime_rl": Loss(PrimeRlSpec, is_of_sampler=True),
    "ipo": Loss(IpoSpec, is_of_sampler=True),
    "gvpo": Loss(GvpoSpec, means_of_responses=True, compares_group=True, is_of_rows=True),
    "trajectory_balance": Loss(
        TrajectoryBalanceSpec,
        means_of_responses=True,
        compares_group=True,
        is_of_rows=True,
        has_reference=True,
    ),
    "flowrl": Loss(
        FlowrlSpec,
        means_of_responses=True,
        is_of_rows=True,
        has_reference=True,
        learns_log_z=True,
    ),
    "bypass": Loss(BypassSpec, is_of_sampler=True),
    "custom": Loss(CustomSpec),
}
"""Every policy loss by its `type`; what it computes stands in the trainer's `POLICY_LOSSES`."""


CLIP_FIELDS: Final = ("clip_low", "clip_high", "dual_clip")
"""Fields of `PolicyLossSpec` that belong to `type: clip`, and to `bypass` with `form: clip`."""


class PolicyLossSpec(Section):
    """The surrogate objective (Schulman et al. 2017, arXiv:1707.06347, equation 7)."""

    type: PolicyLossType = "clip"
    """clip: the minimum of the plain and the clipped ratio, verl's vanilla; the others as in
    docs/algorithms.md. verl: loss_mode vanilla."""

    clip_low: ClipRange = 0.2
    """The ratio is clipped below at 1 - clipLow. PPO and verl: 0.2."""

    clip_high: ClipRange = 0.2
    """The ratio is clipped above at 1 + clipHigh. PPO and verl: 0.2;
    DAPO (arXiv:2503.14476): 0.28."""

    dual_clip: Annotated[float, Field(ge=0, le=1_000)] = 3.0
    """Bound on the loss of negative advantages (Ye et al. 2020, arXiv:1912.09729), above 1;
    0: none. verl: clip_ratio_c, 3."""

    dppo_tv: DppoTvSpec | None = None
    dppo_kl: DppoKlSpec | None = None
    gspo: GspoSpec | None = None
    sapo: SapoSpec | None = None
    clip_cov: ClipCovSpec | None = None
    kl_cov: KlCovSpec | None = None
    geo_mean: GeoMeanSpec | None = None
    dro: DroSpec | None = None
    cispo: CispoSpec | None = None
    vespo: VespoSpec | None = None
    prime_rl: PrimeRlSpec | None = None
    ipo: IpoSpec | None = None
    gvpo: GvpoSpec | None = None
    trajectory_balance: TrajectoryBalanceSpec | None = None
    flowrl: FlowrlSpec | None = None
    bypass: BypassSpec | None = None

    custom: CustomSpec | None = None
    """The function of type custom. verl: register_policy_loss."""

    @property
    def loss(self) -> Loss:
        """What the job's policy loss needs."""
        return LOSSES[self.type]

    @property
    def options(self) -> Section | None:
        """The settings of the job's loss, where it has some and they are given."""
        given: Section | None = getattr(self, self.type) if self.loss.options else None
        return given

    def settings(self) -> dict[str, JsonValue]:
        """What the trainer's function is called with, by its names; every default is in it."""
        if self.custom is not None:
            return dict(self.custom.arguments)
        named: dict[str, JsonValue] = {}
        if self.type in ("clip", "bypass"):
            named |= self.model_dump(include=set(CLIP_FIELDS), by_alias=False)
        if self.loss.options is not None:
            named |= (self.options or self.loss.options()).model_dump(by_alias=False)
        return named


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
    "seq_max_k1",
    "seq_max_k2",
    "seq_max_k3",
]

RATIO_MODES: Final = ("token_k1", "seq_sum_k1", "seq_mean_k1")
"""Modes with bounds on both sides, which are ratios; the others have a largest divergence."""

Bound = Annotated[float, Field(gt=0, le=1_000_000)]


class RejectionSpec(Section):
    """What updates exclude, by the divergence of engine and trainer."""

    mode: RejectionMode
    """The divergence (k1: log-ratio, k2: half its square, k3: r - 1 - log r), and whether
    it rejects single tokens, or whole responses by its sum, mean or maximum. verl: of
    rollout_rs one."""

    low: Bound | None = None
    """With k1, the smallest ratio of engine to trainer; absent: 1 / high. Not with seq_max_k1.
    verl: of rollout_rs_threshold the first of a pair."""

    high: Bound
    """With k1, the largest ratio of engine to trainer (with seq_max_k1 above 1); with k2
    and k3, the largest divergence. verl: of rollout_rs_threshold the only number, or the
    second of a pair."""


class RolloutCorrectionSpec(Section):
    """Weights and rejection by the ratio of trainer to engine (https://richardli.xyz/rl-collapse).

    The trainer's policy is that of the beginning of the step; with policyLoss.type bypass it is
    that in the update. An empty section only measures.
    """

    weights: Literal["none", "token", "sequence"] = "none"
    """The ratio that multiplies the loss of a token: its own (token), or that of the whole response
    (sequence). verl: rollout_correction.rollout_is, null."""

    weight_limit: Bound = 2.0
    """Larger weights are clipped to this; with weightFloor they become 0. verl:
    rollout_correction.rollout_is_threshold, 2."""

    weight_floor: Bound | None = None
    """Smaller weights become 0, and so do those above weightLimit (IcePop, arXiv:2510.18855);
    absent: no such bound. verl: of rollout_is_threshold the first of a pair."""

    normalize: bool = False
    """Divide weights by their mean over the batch; with policyLoss.type bypass over a micro-batch.
    verl: rollout_correction.rollout_is_batch_normalize, false."""

    rejection: Annotated[Items[RejectionSpec], Field(max_length=11)] = ()
    """What updates exclude: a token stays only if every entry keeps it."""
