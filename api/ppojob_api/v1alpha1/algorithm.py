"""The training objective: estimator, batches, policy loss, aggregation and KL."""

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.estimators import (
    ESTIMATORS,
    GIVEN,
    PAIRS,
    SAMPLED_REVERSE_KL,
    DistillationSpec,
    Estimator,
    GdpoSpec,
    GigpoSpec,
    GivenType,
    GrpoPasskSpec,
    GrpoSpec,
    PpoSpec,
    PrimeSpec,
    ReinforcePlusPlusSpec,
    RepromptSpec,
    SpoSpec,
    TrainingType,
)
from ppojob_api.v1alpha1.policy_loss import CustomSpec, PolicyLossSpec, RolloutCorrectionSpec
from ppojob_api.v1alpha1.preferences import DpoSpec, KtoSpec, RewardModelTrainingSpec
from ppojob_api.v1alpha1.section import Coefficient, Count, Section, Tokens

LossAggregation = Literal[
    "token_mean",
    "token_sum",
    "sequence_mean_token_sum",
    "sequence_mean_token_sum_norm",
    "sequence_mean_token_mean",
]
KlEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+", "full"]

GRADIENT_OF_K2: Final = ("k1+", "k3+", "abs+")
"""Estimators that differ from those without + only in their gradient."""

FULL_KL: Final = "full"
"""The KL over the whole vocabulary, not an estimate."""


class KlLossSpec(Section):
    """A KL term in the loss, in addition to the KL in the reward."""

    estimator: KlEstimator = "k3"
    """As kl.estimator. verl: kl_loss_type, low_var_kl, which is k3."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 0.001
    """Its constant weight. verl: kl_loss_coef, 0.001."""


class ReferenceRefreshSpec(Section):
    """Update the reference with the policy's weights (TR-DPO: arXiv:2404.09656)."""

    every_steps: Count
    """Update the reference after every n-th step. TRL: ref_model_sync_steps, 512."""

    mixup: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the policy's weights in the updated reference; 1: a copy of the policy. TRL:
    ref_model_mixup_alpha, 0.6."""


class KlSpec(Section):
    """KL penalty that keeps the policy near the reference, and where it is applied."""

    in_: Annotated[Literal["none", "loss", "reward"], Field(alias="in")] = "none"
    """none; loss: a loss term (GRPO); reward: subtracted from the reward of each token before the
    advantages. verl: use_kl_loss and use_kl_in_reward, both false."""

    estimator: KlEstimator | None = None
    """k1 = a - b, k2 = (a - b)^2 / 2, k3 = e^(b-a) - (b-a) - 1, abs = |a - b| of the
    log-probabilities a of the policy and b of the reference
    (http://joschu.net/blog/kl-approx.html); with + the gradient is that of k2; absent: k1 with
    `in: reward`, k3 with `in: loss`; full: over the whole vocabulary, in the loss alone.
    verl: kl_penalty kl, which is k1; kl_loss_type low_var_kl, which is k3."""

    unbiased: bool = False
    """Multiply a token's KL in the loss by the ratio of the policy to the old policy that sampled
    it, so that its gradient is that of the KL (DeepSeek-V3.2, arXiv:2512.02556). TRL:
    use_bias_correction_kl, false."""

    coefficient: Coefficient = 0.001
    """Weight of the KL; with an adaptive controller the initial weight. verl: 0.001."""

    controller: Literal["fixed", "adaptive"] = "fixed"
    """adaptive: adapt the coefficient to reach `target` (Ziegler et al. 2019, arXiv:1909.08593),
    only with `in: reward`."""

    target: Annotated[float, Field(gt=0, le=1_000_000)] = 0.1
    """KL that the adaptive controller aims at. verl: kl_ctrl.target_kl, 0.1."""

    horizon: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10_000
    """Samples over which the adaptive controller corrects. verl: kl_ctrl.horizon, 10000."""

    loss_term: KlLossSpec | None = None
    """Add a KL loss term too, with `in: reward`. verl: use_kl_loss beside use_kl_in_reward."""

    reference_refresh: ReferenceRefreshSpec | None = None
    """Update the reference with the policy's weights from time to time; absent: it never
    changes."""

    @property
    def first_coefficient(self) -> float | None:
        """The coefficient of the first step; None without a KL penalty."""
        return None if self.in_ == "none" else self.coefficient

    @property
    def is_full(self) -> bool:
        """Whether the KL in the loss is that over the whole vocabulary."""
        in_loss = self.loss_term.estimator if self.loss_term is not None else self.estimator
        return self.in_ != "none" and in_loss == FULL_KL

    @property
    def has_estimate(self) -> bool:
        """Whether a KL is estimated from the reference's log-probabilities of sampled tokens."""
        return self.in_ == "reward" or (self.in_ == "loss" and not self.is_full)


class EntropyControlSpec(Section):
    """Adapt entropyCoefficient step by step to keep the entropy up (arXiv:2505.22312)."""

    target: Annotated[float, Field(gt=0, le=1_000)] = 0.2
    """Target entropy in nats per token. Below it there is a bonus, whose weight grows. The paper:
    0.2."""

    step: Annotated[float, Field(gt=0, le=1_000_000)] = 0.005
    """Change of the weight per step: up below the target, down above it. The paper: 0.005; its
    published runs: 0.0001."""

    min_coefficient: Coefficient = 0.0
    """Smallest weight."""

    max_coefficient: Coefficient = 0.1
    """Largest weight. The published runs of the paper: 0.005."""


Score = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]


class DynamicSamplingSpec(Section):
    """Replace prompts whose responses all score the same (Yu et al. 2025, arXiv:2503.14476)."""

    metric: Annotated[str, Field(min_length=1, max_length=253)] = "score"
    """The value that must differ within a group: score, or the name of a number that reward
    functions return beside it, such as acc. verl: filter_groups.metric; its seq_reward is score."""

    max_rounds: Annotated[int, Field(ge=1, le=1_000)] = 10
    """Rounds of sampling prompts, generating and scoring in a step, including the first. Then
    prompts without a difference fill the batch; verl fails instead. verl: max_num_gen_batches, 0
    (no limit)."""

    prompts_per_round: Count | None = None
    """Prompts per round; absent: promptsPerStep. verl: data.gen_batch_size."""

    mean_above: Score | None = None
    """Also replace prompts that are too hard: their mean of the metric is not above this; absent:
    none. OpenRLHF: the first of dynamic_filtering_reward_range."""

    mean_below: Score | None = None
    """Also replace prompts that are too easy: their mean of the metric is not below this; absent:
    none. OpenRLHF: the second."""

    whole_responses: bool = False
    """Also replace prompts with a truncated response. verl: data.filter_truncate."""

    @property
    def means(self) -> tuple[float, float]:
        """Bounds of the mean of a group."""
        low = -math.inf if self.mean_above is None else self.mean_above
        return low, math.inf if self.mean_below is None else self.mean_below


class GroupFilterSpec(Section):
    """Train only on some of the responses to each prompt (GFPO: arXiv:2508.09726)."""

    keep: Annotated[int, Field(ge=1, le=65_535)]
    """Responses to each prompt that are trained on. TRL: num_remains_in_group."""

    metric: Annotated[str, Field(min_length=1, max_length=253)] = "length"
    """Which responses are kept. length: the shortest; score_per_token: those with the largest score
    divided by length; score, or the name of a number that reward functions return beside it: those
    with the largest value. TRL: group_filter_func."""


class ResamplingSpec(Section):
    """Resample the responses that updates train on by their scores (PF-PPO: arXiv:2409.06957)."""

    method: Literal["pow", "max_min", "max_random"] = "pow"
    """pow: by a power of the absolute score; max_min: the best and the worst; max_random: the best
    four times as likely as others. verl: pf_ppo.reweight_method, pow."""

    power: Annotated[float, Field(gt=0, le=100)] = 2.0
    """With pow, the power of the absolute score. verl: pf_ppo.weight_pow, 2."""


class OverlongPenaltySpec(Section):
    """Penalty on the score of responses near data.maxResponseTokens (arXiv:2503.14476)."""

    buffer_tokens: Tokens
    """How many tokens before the limit the penalty begins. verl: overlong_buffer.len."""

    factor: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Penalty at the limit itself; it grows linearly up to there. verl:
    overlong_buffer.penalty_factor."""


class ScoreClipSpec(Section):
    """Bounds for the scores in training; one of them may be absent."""

    low: Score | None = None
    """Lower scores count as this. OpenRLHF: the first of reward_clip_range, -10."""

    high: Score | None = None
    """Higher scores count as this. OpenRLHF: the second of reward_clip_range, 10."""


class SupervisedSpec(Section):
    """Add an SFT loss to the policy loss (PPO-ptx, InstructGPT: arXiv:2203.02155)."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)]
    """Weight of the mean cross entropy of their trained tokens in the loss of each optimizer step
    of the policy; the largest weight if it changes. OpenRLHF: ptx_coef, 0.05."""

    rows_per_step: Count | None = None
    """Rows of data.demonstrations per step, split evenly over its optimizer steps; absent:
    promptsPerStep."""

    interpolate: bool = False
    """Weigh the policy loss with 1 - coefficient, so both weights add up to 1 (CHORD:
    arXiv:2508.11408)."""

    uncertain_tokens: bool = False
    """Weigh each token with p (1 - p), where p is its probability under the policy. Tokens that the
    policy is sure of, or would never write, count little (CHORD)."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Policy steps in which the coefficient rises from 0."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the coefficient after the warm-up. CHORD: cosine."""

    decay_steps: Count | None = None
    """Policy steps, including the warm-up, after which the coefficient is minCoefficient."""

    min_coefficient: Coefficient = 0.0
    """Final coefficient of the schedule; with 0 no rows are used from then on."""


class GuidanceSpec(Section):
    """Use responses from the data as samples of a prompt (LUFFY: arXiv:2504.14945)."""

    samples: Annotated[int, Field(ge=1, le=65_535)] = 1
    """How many of samplesPerPrompt come from data.guidanceKey. If a row has fewer, the policy
    generates the rest. LUFFY: n_prefix, 1."""

    gamma: Annotated[float, Field(gt=0, le=1_000_000)] = 0.1
    """Their loss per token is -A p / (p + gamma), where A is the advantage and p the policy's
    probability; the gradient is largest at p = gamma. LUFFY: off_policy_reshape p_div_p_0.1."""


class PositiveExamplesSpec(Section):
    """Add the cross entropy of right responses to the policy loss (VAPO: arXiv:2504.05118)."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 0.1
    """Weight of their mean cross entropy per token in the loss of each optimizer step of the
    policy. VAPO: 0.1."""

    min_score: Score = 1.0
    """A response is right if its score, before penalties, is at least this."""


class CertaintyRewardSpec(Section):
    """Reward responses by the policy's certainty (Intuitor: arXiv:2505.19590)."""

    type: Literal["self_certainty", "negative_entropy", "answer_probability"] = "self_certainty"
    """self_certainty: the KL of the uniform distribution to the policy's, a mean over trained
    tokens. negative_entropy: minus the entropy (RENT: arXiv:2505.22660). answer_probability: the
    probability of the ground truth in place of the response's answer, a mean over its tokens (RLPR:
    arXiv:2506.18254)."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Weight of this reward."""

    beside_scores: bool = False
    """Add it to scores; false: scores, if any, are metrics only."""

    marker: Annotated[str, Field(min_length=1, max_length=100)] = "<answer>"
    """answer_probability: text before the answer; a response without it, or with it twice,
    gets 0."""

    debias: bool = False
    """answer_probability: subtract the probability of the ground truth directly behind the prompt;
    at least 0 remains."""


class AlgorithmSpec(Section):
    """The training objective.

    A step has promptsPerStep prompts, samplesPerPrompt responses each, and one or more updates.
    """

    type: TrainingType
    """Estimators of advantages for rollouts; distillation: learn from a teacher, spec.reference,
    instead of rewards; online_dpo: the best and the worst response of each prompt are a DPO pair.
    For rows with given answers: sft, supervised fine-tuning; dpo, direct preference optimization;
    kto, single answers labelled good or bad; reward_model, whose export scores responses. verl:
    algorithm.adv_estimator; sft is its trainer sft_trainer."""

    prompts_per_step: Count
    """Prompts per step; for given answers rows or pairs per step. verl: data.train_batch_size."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Responses per prompt (the size of a group). verl: rollout.n, 1."""

    mini_batch_prompts: Count | None = None
    """Prompts of one optimizer step; divides promptsPerStep; absent: all (on-policy). With
    fewer prompts than ranks, ranks share a prompt's responses. verl: ppo_mini_batch_size,
    of prompts too."""

    epochs: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Passes over a step's rollouts. verl: ppo_epochs, 1."""

    shuffle_mini_batches: bool = False
    """Form mini-batches in a seeded random order. verl: actor.shuffle, false."""

    ppo: PpoSpec | None = None
    grpo: GrpoSpec | None = None
    grpo_passk: GrpoPasskSpec | None = None
    reinforce_plus_plus: ReinforcePlusPlusSpec | None = None
    prime: PrimeSpec | None = None

    dynamic_sampling: DynamicSamplingSpec | None = None
    """Train only on prompts whose responses differ in score; absent: on all prompts. verl:
    algorithm.filter_groups."""

    group_filter: GroupFilterSpec | None = None
    """Train only on some of the responses to each prompt, and compare them with each other; absent:
    on all."""

    supervised: SupervisedSpec | None = None
    """Add an SFT loss on data.demonstrations to the policy loss; absent: none."""

    guidance: GuidanceSpec | None = None
    """Use responses from the data as some of the samples; absent: the policy generates all."""

    positive_examples: PositiveExamplesSpec | None = None
    """Raise the likelihood of responses with a good score, whatever their advantages are; absent:
    no."""

    certainty_reward: CertaintyRewardSpec | None = None
    """Learn from the policy's certainty of its responses; absent: from scores."""

    resampling: ResamplingSpec | None = None
    """Train on responses resampled by their scores, some of them several times; absent: on each
    response once. verl: use_pf_ppo, false."""

    overlong_penalty: OverlongPenaltySpec | None = None
    """A penalty on overlong responses in training; absent: none. verl: overlong_buffer."""

    score_clip: ScoreClipSpec | None = None
    """Bounds for scores in training, before penalties; absent: none. TRL and OpenRLHF:
    reward_clip_range."""

    truncation_penalty: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Subtracted from the score of a truncated response; absent: nothing. TRL:
    missing_eos_penalty."""

    spo: SpoSpec | None = None
    gdpo: GdpoSpec | None = None
    gigpo: GigpoSpec | None = None
    distillation: DistillationSpec | None = None
    dpo: DpoSpec | None = None

    online_dpo: DpoSpec | None = None
    """Settings of type online_dpo, those of dpo."""

    kto: KtoSpec | None = None
    reward_model: RewardModelTrainingSpec | None = None

    custom: CustomSpec | None = None
    """The estimator of type custom. verl: register_adv_est."""

    policy_loss: PolicyLossSpec = PolicyLossSpec()

    rollout_correction: RolloutCorrectionSpec | None = None
    """Correct for differences between the probabilities of engine and trainer; absent: no. verl:
    algorithm.rollout_correction."""

    router_replay: Literal["none", "recompute", "rollout"] = "none"
    """Experts that updates use for each token (MoE). none: the routers' current choice; recompute:
    their choice before the first update of the step (GSPO: arXiv:2507.18071); rollout: the engine's
    choice (R3: arXiv:2510.11370). verl: actor.router_replay.mode: disabled, R2, R3."""

    router_balance_coefficient: Coefficient = 0.0
    """Weight of the load-balancing loss of MoE routers, a mean over rows, summed over layers
    (DeepSeek-V2: arXiv:2405.04434). verl: moe_aux_loss_coeff, without effect unless
    moe_router_load_balancing_type is given too."""

    router_z_coefficient: Coefficient = 0.0
    """Weight of the z-loss of MoE routers, which keeps their logits small, a mean over rows, summed
    over layers (ST-MoE: arXiv:2202.08906). verl: moe_z_loss_coeff, 0."""

    router_bias_rate: Coefficient = 0.0
    """Change of the bias of MoE routers per update: up for an expert with fewer tokens than the
    mean, down for one with more (DeepSeek-V3: arXiv:2412.19437, 0.001); 0: the bias stays. verl:
    moe_router_bias_update_rate, with moe_router_enable_expert_bias."""

    loss_aggregation: LossAggregation = "token_mean"
    """How token losses become one loss; every denominator is that of the whole mini-batch. verl:
    loss_agg_mode, token-mean."""

    loss_scale_tokens: Tokens | None = None
    """Divisor of sequence_mean_token_sum_norm; absent: data.maxResponseTokens.
    verl: loss_scale_factor, null (the padded length)."""

    entropy_coefficient: Coefficient = 0.0
    """Weight of the entropy bonus; with entropyControl the initial weight. verl:
    entropy_coeff, 0."""

    entropy_control: EntropyControlSpec | None = None
    """Adapt the weight of the entropy bonus to the entropy; absent: it is constant."""

    high_entropy_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the batch's trained tokens with a policy loss: those of the highest entropy (Wang et
    al. 2025, arXiv:2506.01939: 0.2); 1: all."""

    off_policy_threshold: Annotated[float, Field(gt=0, le=1_000)] | None = None
    """Mask tokens with a negative advantage in off-policy responses: those whose likelihood under
    the policy is below the sampler's by more than this, in nats per token (DeepSeek-V3.2,
    arXiv:2512.02556); absent: mask none. TRL: off_policy_mask_threshold."""

    mask_truncated: bool = False
    """Exclude truncated responses from updates. Their scores still count for their prompt, but with
    online_dpo they are in no pair. TRL: mask_truncated_completions."""

    kl: KlSpec = KlSpec()

    @property
    def is_bypass(self) -> bool:
        """Whether the engine's log-probabilities are used as those of the old policy."""
        return self.policy_loss.loss.is_of_sampler

    @property
    def is_corrected_before(self) -> bool:
        """Whether a rollout correction compares the old policy with the engine."""
        return self.rollout_correction is not None and not self.is_bypass

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the loss has an entropy bonus in some step."""
        return self.entropy_control is not None or self.entropy_coefficient > 0.0

    @property
    def reads_entropies(self) -> bool:
        """Whether training, not only metrics, needs the old policy's entropy of each token."""
        certainty = self.certainty_reward
        is_reward = certainty is not None and certainty.type == "negative_entropy"
        return is_reward or self.high_entropy_share < 1.0

    @property
    def reads_certainties(self) -> bool:
        """Whether training needs the old policy's self-certainty of each token."""
        certainty = self.certainty_reward
        return certainty is not None and certainty.type == "self_certainty"

    @property
    def answer_reward(self) -> CertaintyRewardSpec | None:
        """The reward by the probability of the ground truth; None without it."""
        certainty = self.certainty_reward
        is_of_answers = certainty is not None and certainty.type == "answer_probability"
        return certainty if is_of_answers else None

    @property
    def learns_scores(self) -> bool:
        """Whether training uses the scores of rewards."""
        certainty = self.certainty_reward
        return not self.estimator.has_teacher and (certainty is None or certainty.beside_scores)

    @property
    def has_router_losses(self) -> bool:
        """Whether the loss has router terms."""
        return self.router_balance_coefficient > 0.0 or self.router_z_coefficient > 0.0

    @property
    def draw(self) -> tuple[str, int]:
        """The field below `spec.algorithm` with the prompts drawn at once, and their number."""
        sampling = self.dynamic_sampling
        if sampling is None or sampling.prompts_per_round is None:
            return "promptsPerStep", self.prompts_per_step
        return "dynamicSampling.promptsPerRound", sampling.prompts_per_round

    @property
    def most_drawn(self) -> int:
        """Maximum number of prompts that a step draws."""
        rounds = 1 if self.dynamic_sampling is None else self.dynamic_sampling.max_rounds
        return self.draw[1] * rounds

    @property
    def given(self) -> GivenType | None:
        """The type, if rows have given answers and nothing is generated."""
        return next((name for name in GIVEN if name == self.type), None)

    @property
    def answers_per_row(self) -> int:
        """Number of answers of a row with given answers."""
        return 2 if self.type in PAIRS else 1

    @property
    def has_mismatched(self) -> bool:
        """Whether each prompt is also paired with the answer to another one, to estimate the KL."""
        return self.type == "kto" and (self.kto or KtoSpec()).loss_type == "kto"

    @property
    def tracks_rewards(self) -> bool:
        """Whether rewards of given answers are compared with their mean so far."""
        return self.type == "kto" and (self.kto or KtoSpec()).loss_type == "bco"

    @property
    def pairs(self) -> DpoSpec | None:
        """The settings of the preference loss on given or generated pairs, if that is the loss."""
        if self.type == "dpo":
            return self.dpo or DpoSpec()
        return (self.online_dpo or DpoSpec()) if self.estimator.has_pairs else None

    @property
    def has_reference(self) -> bool:
        """Whether the policy is compared with a reference."""
        return self.kl.in_ != "none" or self.compares_rows or self.estimator.has_teacher

    @property
    def divergence(self) -> DistillationSpec | None:
        """The divergence from a teacher over the whole vocabulary, if that is the loss."""
        if not self.estimator.has_teacher:
            return None
        settings = self.distillation or DistillationSpec()
        return None if settings.divergence == SAMPLED_REVERSE_KL else settings

    @property
    def reprompt(self) -> RepromptSpec | None:
        """How teacher prompts are built from the responses of a group, if they are."""
        return self.distillation.reprompt if self.distillation is not None else None

    @property
    def is_estimated(self) -> bool:
        """Whether tokens have advantages."""
        return self.given is None and self.divergence is None

    @property
    def reads_reference(self) -> bool:
        """Whether the reference computes log-probabilities of the rows."""
        is_sampled = self.estimator.has_teacher and self.divergence is None
        return self.kl.has_estimate or self.compares_rows or is_sampled

    @property
    def compares_rows(self) -> bool:
        """Whether a loss on whole rows compares them with the reference."""
        if self.pairs is not None:
            return self.pairs.has_reference
        return self.type == "kto" or self.policy_loss.loss.has_reference

    @property
    def whole_groups(self) -> bool:
        """Whether the rows of a group are computed together, since the loss compares them."""
        has_pairs = self.type in PAIRS or self.estimator.has_pairs
        return has_pairs or self.policy_loss.loss.compares_group

    @property
    def compares_answers(self) -> bool:
        """Whether these rows are given answers."""
        return self.given is not None and self.compares_rows

    @property
    def compares_vocabularies(self) -> bool:
        """Whether updates compare the policy with the reference over the whole vocabulary."""
        return self.kl.is_full or self.divergence is not None

    @property
    def estimator(self) -> Estimator:
        """Properties of the job's estimator, or of its type of given answers."""
        every = (*ESTIMATORS.items(), *GIVEN.items())
        return next(one for name, one in every if name == self.type)

    @property
    def options(self) -> Section | None:
        """The settings of the job's estimator, if given."""
        given: Section | None = getattr(self, self.type) if self.estimator.options else None
        return given
