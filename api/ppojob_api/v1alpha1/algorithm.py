"""What is optimised: estimator, batch arithmetic, policy loss, aggregation and KL."""

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
"""Estimators that differ from others in their gradient alone."""

FULL_KL: Final = "full"
"""No estimator: the KL over the whole vocabulary."""


class KlLossSpec(Section):
    """A KL in the loss, beside the one in the reward."""

    estimator: KlEstimator = "k3"
    """As kl.estimator. verl: kl_loss_type, low_var_kl, which is k3."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 0.001
    """Its weight, which stays as it is. verl: kl_loss_coef, 0.001."""


class ReferenceRefreshSpec(Section):
    """Let the reference follow the policy (TR-DPO: Gorbatovski et al. 2024, arXiv:2404.09656)."""

    every_steps: Count
    """Behind every so many steps the reference takes over the weights that they have trained.
    TRL: ref_model_sync_steps, 512."""

    mixup: Annotated[float, Field(gt=0, le=1)] = 1.0
    """How much of the policy's weights it takes, the rest being its own; 1: a copy of the policy.
    TRL: ref_model_mixup_alpha, 0.6."""


class KlSpec(Section):
    """How far the policy may move from the reference, and where that is charged."""

    in_: Annotated[Literal["none", "loss", "reward"], Field(alias="in")] = "none"
    """none; loss: a term of the loss (GRPO); reward: subtracted per token before the advantages.
    verl: use_kl_loss and use_kl_in_reward, both false."""

    estimator: KlEstimator | None = None
    """k1 = a - b, k2 = (a - b)^2 / 2, k3 = e^(b-a) - (b-a) - 1, abs = |a - b|
    (http://joschu.net/blog/kl-approx.html); with + the gradient is that of k2; absent: k1 with
    `in: reward`, k3 with `in: loss`; full: over the whole vocabulary, in the loss alone.
    verl: kl_penalty kl, which is k1; kl_loss_type low_var_kl, which is k3."""

    unbiased: bool = False
    """Multiply the KL of a token in the loss by the probability of the policy over that of the old
    policy, which drew it: its gradient is that of the KL then (DeepSeek-V3.2, arXiv:2512.02556).
    TRL: use_bias_correction_kl, false."""

    coefficient: Coefficient = 0.001
    """Weight of the KL, the first one when the controller is adaptive. verl: 0.001."""

    controller: Literal["fixed", "adaptive"] = "fixed"
    """adaptive follows `target` (Ziegler et al. 2019, arXiv:1909.08593), only with `in: reward`."""

    target: Annotated[float, Field(gt=0, le=1_000_000)] = 0.1
    """KL the adaptive controller steers to. verl: kl_ctrl.target_kl, 0.1."""

    horizon: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10_000
    """Samples over which the adaptive controller corrects. verl: kl_ctrl.horizon, 10000."""

    loss_term: KlLossSpec | None = None
    """A term of the loss as well, with `in: reward`. verl: use_kl_loss beside use_kl_in_reward."""

    reference_refresh: ReferenceRefreshSpec | None = None
    """Bring the reference up to the policy from time to time; absent: it stays as the job began."""

    @property
    def first_coefficient(self) -> float | None:
        """That of the first step; None where the KL decides nothing."""
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
    """Lead entropyCoefficient by steps, so that the entropy stays up (arXiv:2505.22312)."""

    target: Annotated[float, Field(gt=0, le=1_000)] = 0.2
    """Entropy in nats a token; below it there is a bonus, whose weight grows. The paper: 0.2."""

    step: Annotated[float, Field(gt=0, le=1_000_000)] = 0.005
    """By how much the weight grows in a step below the target, and falls in one above. The paper:
    0.005; its published runs: 0.0001."""

    min_coefficient: Coefficient = 0.0
    """The least weight."""

    max_coefficient: Coefficient = 0.1
    """The largest weight. The published runs of the paper: 0.005."""


Score = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]


class DynamicSamplingSpec(Section):
    """Replace prompts whose responses all score the same (Yu et al. 2025, arXiv:2503.14476)."""

    metric: Annotated[str, Field(min_length=1, max_length=253)] = "score"
    """What has to differ within a group: score, or the name of a number that reward functions give
    beside it, such as acc. verl: filter_groups.metric; its seq_reward is score."""

    max_rounds: Annotated[int, Field(ge=1, le=1_000)] = 10
    """Rounds of drawing, answering and scoring prompts in a step, the first one included. Then
    prompts without a difference fill the batch, where verl fails. verl: max_num_gen_batches, 0 (no
    limit)."""

    prompts_per_round: Count | None = None
    """Prompts of a round; absent: promptsPerStep. verl: data.gen_batch_size."""

    mean_above: Score | None = None
    """Replace prompts as well whose responses have no higher mean of the metric, too hard ones;
    absent: none. OpenRLHF: the first of dynamic_filtering_reward_range."""

    mean_below: Score | None = None
    """Likewise those with no lower mean, too easy ones. OpenRLHF: the second."""

    whole_responses: bool = False
    """Replace prompts as well of which a response ran into the limit of its length.
    verl: data.filter_truncate."""

    @property
    def means(self) -> tuple[float, float]:
        """What the mean of a group has to lie between."""
        low = -math.inf if self.mean_above is None else self.mean_above
        return low, math.inf if self.mean_below is None else self.mean_below


class GroupFilterSpec(Section):
    """Train on some of the responses to each prompt alone (GFPO: arXiv:2508.09726)."""

    keep: Annotated[int, Field(ge=1, le=65_535)]
    """Responses to each prompt that are trained on. TRL: num_remains_in_group."""

    metric: Annotated[str, Field(min_length=1, max_length=253)] = "length"
    """Which they are. length: the shortest; score_per_token: those with the largest score a token;
    score, or the name of a number that reward functions give beside it: those with the largest.
    TRL: group_filter_func."""


class ResamplingSpec(Section):
    """Draw the responses that updates train on by their scores (PF-PPO: arXiv:2409.06957)."""

    method: Literal["pow", "max_min", "max_random"] = "pow"
    """pow: by the size of the score; max_min: the best and the worst; max_random: the best four
    times as likely as others. verl: pf_ppo.reweight_method, pow."""

    power: Annotated[float, Field(gt=0, le=100)] = 2.0
    """With pow, the power of the size. verl: pf_ppo.weight_pow, 2."""


class OverlongPenaltySpec(Section):
    """Take from the score of responses near data.maxResponseTokens (arXiv:2503.14476)."""

    buffer_tokens: Tokens
    """How many tokens before the limit the penalty begins. verl: overlong_buffer.len."""

    factor: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """What the limit itself costs; up to there it grows evenly.
    verl: overlong_buffer.penalty_factor."""


class ScoreClipSpec(Section):
    """Limits of the scores that are learnt from; one of both may be absent."""

    low: Score | None = None
    """Lower scores count as this. OpenRLHF: the first of reward_clip_range, -10."""

    high: Score | None = None
    """Higher scores count as this. OpenRLHF: the second of reward_clip_range, 10."""


class SupervisedSpec(Section):
    """Learn given answers beside the policy loss (PPO-ptx, InstructGPT: arXiv:2203.02155)."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)]
    """Weight of the mean cross-entropy of their trained tokens, which is added to the loss of each
    optimizer step of the policy; the largest one where it changes. OpenRLHF: ptx_coef, 0.05."""

    rows_per_step: Count | None = None
    """Rows of data.demonstrations in each step, parted evenly over its optimizer steps, each row in
    one of them; absent: promptsPerStep."""

    interpolate: bool = False
    """Weigh the loss of the policy with 1 - coefficient, so that both weights add up to 1
    (CHORD: arXiv:2508.11408)."""

    uncertain_tokens: bool = False
    """Weigh each token with p (1 - p), p its probability by the policy: little is learnt of what
    the policy is sure of, or would never write (CHORD)."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """First steps of the policy, in which the coefficient rises from 0."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the coefficient falls after the warm-up. CHORD: cosine."""

    decay_steps: Count | None = None
    """Steps of the policy, the warm-up among them, behind which the coefficient is
    minCoefficient."""

    min_coefficient: Coefficient = 0.0
    """What the schedule falls to; with 0 no rows are learnt from then on."""


class GuidanceSpec(Section):
    """Compare given responses with those that the policy draws (LUFFY: arXiv:2504.14945)."""

    samples: Annotated[int, Field(ge=1, le=65_535)] = 1
    """How many of samplesPerPrompt are the first ones of data.guidanceKey; a row that has fewer has
    more drawn. LUFFY: n_prefix, 1."""

    gamma: Annotated[float, Field(gt=0, le=1_000_000)] = 0.1
    """The policy loss of their tokens is -A p / (p + gamma), A the advantage, p the probability by
    the policy: most is learnt where p is gamma. LUFFY: off_policy_reshape p_div_p_0.1."""


class PositiveExamplesSpec(Section):
    """Learn right responses as given answers, beside the policy loss (VAPO: arXiv:2504.05118)."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 0.1
    """Weight of their mean cross-entropy a token, which is added to the loss of each optimizer step
    of the policy. VAPO: 0.1."""

    min_score: Score = 1.0
    """Responses that score as much, before penalties, are right."""


class CertaintyRewardSpec(Section):
    """Reward responses that the policy is sure of (Intuitor: arXiv:2505.19590)."""

    type: Literal["self_certainty", "negative_entropy", "answer_probability"] = "self_certainty"
    """A mean over trained tokens: the KL of the uniform distribution to the policy's, or minus the
    entropy (RENT: arXiv:2505.22660); or over those of the ground truth, written in the place of the
    answer: their probability (RLPR: arXiv:2506.18254)."""

    coefficient: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Its factor."""

    beside_scores: bool = False
    """Add it to scores; false: rewards only measure, if there are some."""

    marker: Annotated[str, Field(min_length=1, max_length=100)] = "<answer>"
    """answer_probability: the answer begins behind it; a response without it, or with two,
    earns 0."""

    debias: bool = False
    """answer_probability: less that right behind the prompt, at least 0."""


class AlgorithmSpec(Section):
    """One step: promptsPerStep prompts, samplesPerPrompt responses each, one or more updates."""

    type: TrainingType
    """The advantage estimator; distillation: what a teacher says, spec.reference, in the place of
    rewards; online_dpo: the best and the worst response of each prompt are a pair of dpo;
    or of rows that have their answers: sft, supervised fine-tuning;
    dpo, direct preference optimization; kto, of single answers, good or bad;
    reward_model, whose export scores the responses of others.
    verl: algorithm.adv_estimator; sft is its trainer sft_trainer."""

    prompts_per_step: Count
    """Prompts drawn in each step; rows, or pairs, of given answers. verl: data.train_batch_size."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Responses of each prompt, a group. verl: rollout.n, 1."""

    mini_batch_prompts: Count | None = None
    """Prompts of one optimizer step; divides promptsPerStep; absent: all (on-policy). Of fewer than
    ranks each rank has some of a prompt's responses. verl: ppo_mini_batch_size, of prompts too."""

    epochs: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Passes over a step's experience. verl: ppo_epochs, 1."""

    shuffle_mini_batches: bool = False
    """Draw mini-batches in a seeded random order. verl: actor.shuffle, false."""

    ppo: PpoSpec | None = None
    """Settings of type ppo; those of its value model are in spec.critic."""

    grpo: GrpoSpec | None = None
    """Settings of type grpo."""

    grpo_passk: GrpoPasskSpec | None = None
    """Settings of type grpo_passk."""

    reinforce_plus_plus: ReinforcePlusPlusSpec | None = None
    """Settings of type reinforce_plus_plus."""

    prime: PrimeSpec | None = None
    """Settings of type prime; those of its process reward model are in spec.critic."""

    dynamic_sampling: DynamicSamplingSpec | None = None
    """Train on prompts alone whose responses differ in their score; absent: on all prompts.
    verl: algorithm.filter_groups."""

    group_filter: GroupFilterSpec | None = None
    """Train on some of the responses to each prompt alone, and compare them with each other;
    absent: on all."""

    supervised: SupervisedSpec | None = None
    """Learn given answers, the rows of data.demonstrations, beside what is drawn; absent: none."""

    guidance: GuidanceSpec | None = None
    """Let responses that are given take the place of some that would be drawn; absent: all are
    drawn."""

    positive_examples: PositiveExamplesSpec | None = None
    """Raise the likelihood of responses that scored well, whatever their advantages are; absent:
    do not."""

    certainty_reward: CertaintyRewardSpec | None = None
    """Learn from how sure the policy is of its responses; absent: from scores."""

    resampling: ResamplingSpec | None = None
    """Train on responses that are drawn by their scores, some of them several times; absent: on
    each response once. verl: use_pf_ppo, false."""

    overlong_penalty: OverlongPenaltySpec | None = None
    """A penalty on overlong responses in training; absent: none. verl: overlong_buffer."""

    score_clip: ScoreClipSpec | None = None
    """Limits of scores in training, before penalties; absent: none. TRL and OpenRLHF:
    reward_clip_range."""

    truncation_penalty: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """What a response that ran into the limit of its length loses of its score; absent: nothing.
    TRL: missing_eos_penalty."""

    spo: SpoSpec | None = None
    """Settings of type spo."""

    gdpo: GdpoSpec | None = None
    """Settings of type gdpo, which needs rewardKeys."""

    gigpo: GigpoSpec | None = None
    """Settings of type gigpo."""

    distillation: DistillationSpec | None = None
    """Settings of type distillation."""

    dpo: DpoSpec | None = None
    """Settings of type dpo."""

    online_dpo: DpoSpec | None = None
    """Settings of type online_dpo, those of dpo."""

    kto: KtoSpec | None = None
    """Settings of type kto."""

    reward_model: RewardModelTrainingSpec | None = None
    """Settings of type reward_model."""

    custom: CustomSpec | None = None
    """The estimator of type custom. verl: register_adv_est."""

    policy_loss: PolicyLossSpec = PolicyLossSpec()
    """The surrogate objective."""

    rollout_correction: RolloutCorrectionSpec | None = None
    """Correction for an engine whose numbers are not the trainer's; absent: none.
    verl: algorithm.rollout_correction."""

    router_replay: Literal["none", "recompute", "rollout"] = "none"
    """Experts that updates let each token go to. none: those that routers choose then; recompute:
    those that they chose before the first update of the step (GSPO: arXiv:2507.18071); rollout:
    those that the engine chose (R3: arXiv:2510.11370).
    verl: actor.router_replay.mode: disabled, R2, R3."""

    router_balance_coefficient: Coefficient = 0.0
    """Weight of the balance loss of a mixture's routers, a mean over rows, added up over layers
    (DeepSeek-V2: arXiv:2405.04434). verl: moe_aux_loss_coeff, without effect unless
    moe_router_load_balancing_type is given too."""

    router_z_coefficient: Coefficient = 0.0
    """Weight of the z-loss of a mixture's routers, which keeps their logits small, a mean over
    rows, added up over layers (ST-MoE: arXiv:2202.08906). verl: moe_z_loss_coeff, 0."""

    router_bias_rate: Coefficient = 0.0
    """By how much an update moves the bias by which routers choose an expert: up where it got fewer
    tokens than the mean expert, down where it got more (DeepSeek-V3: arXiv:2412.19437, 0.001); 0:
    the bias stays. verl: moe_router_bias_update_rate, with moe_router_enable_expert_bias."""

    loss_aggregation: LossAggregation = "token_mean"
    """How token losses become one number; every denominator is the whole mini-batch's.
    verl: loss_agg_mode, token-mean."""

    loss_scale_tokens: Tokens | None = None
    """Divisor of sequence_mean_token_sum_norm; absent: data.maxResponseTokens.
    verl: loss_scale_factor, null (the padded length)."""

    entropy_coefficient: Coefficient = 0.0
    """Weight of the entropy bonus, the first one with entropyControl. verl: entropy_coeff, 0."""

    entropy_control: EntropyControlSpec | None = None
    """Adapt the weight of the entropy bonus to the entropy; absent: it stays."""

    high_entropy_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the batch's trained tokens, those of the highest entropy, that have a policy loss
    (Wang et al. 2025, arXiv:2506.01939: 0.2); 1: all."""

    off_policy_threshold: Annotated[float, Field(gt=0, le=1_000)] | None = None
    """Tokens of a negative advantage have no policy loss in responses that the policy finds less
    likely than the sampler did, by more than this in nats a token (DeepSeek-V3.2,
    arXiv:2512.02556); absent: all have one. TRL: off_policy_mask_threshold."""

    mask_truncated: bool = False
    """Whether responses that ran into the limit of their length are left out of the updates; their
    scores count among those of their prompt all the same, but with online_dpo they are in no pair.
    TRL: mask_truncated_completions."""

    kl: KlSpec = KlSpec()
    """The KL penalty."""

    @property
    def is_bypass(self) -> bool:
        """Whether the engine's log-probabilities stand for those of the policy before the step."""
        return self.policy_loss.loss.is_of_sampler

    @property
    def is_corrected_before(self) -> bool:
        """Whether a rollout correction compares the policy before the step with the engine."""
        return self.rollout_correction is not None and not self.is_bypass

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the loss has a bonus for entropy, in some step at least."""
        return self.entropy_control is not None or self.entropy_coefficient > 0.0

    @property
    def reads_entropies(self) -> bool:
        """Whether something but metrics reads the entropy at each token before the step."""
        certainty = self.certainty_reward
        is_reward = certainty is not None and certainty.type == "negative_entropy"
        return is_reward or self.high_entropy_share < 1.0

    @property
    def reads_certainties(self) -> bool:
        """Whether it reads the self-certainty there."""
        certainty = self.certainty_reward
        return certainty is not None and certainty.type == "self_certainty"

    @property
    def answer_reward(self) -> CertaintyRewardSpec | None:
        """How the probability of known answers is a reward; None where it is none."""
        certainty = self.certainty_reward
        is_of_answers = certainty is not None and certainty.type == "answer_probability"
        return certainty if is_of_answers else None

    @property
    def learns_scores(self) -> bool:
        """Whether something is learnt from the scores of rewards."""
        certainty = self.certainty_reward
        return not self.estimator.has_teacher and (certainty is None or certainty.beside_scores)

    @property
    def has_router_losses(self) -> bool:
        """Whether the loss has terms for routers."""
        return self.router_balance_coefficient > 0.0 or self.router_z_coefficient > 0.0

    @property
    def draw(self) -> tuple[str, int]:
        """How many prompts are drawn at once, and the field below `spec.algorithm` that says so."""
        sampling = self.dynamic_sampling
        if sampling is None or sampling.prompts_per_round is None:
            return "promptsPerStep", self.prompts_per_step
        return "dynamicSampling.promptsPerRound", sampling.prompts_per_round

    @property
    def most_drawn(self) -> int:
        """How many prompts a step draws at most."""
        rounds = 1 if self.dynamic_sampling is None else self.dynamic_sampling.max_rounds
        return self.draw[1] * rounds

    @property
    def given(self) -> GivenType | None:
        """The type where rows have their answers, so that nothing is generated or estimated."""
        return next((name for name in GIVEN if name == self.type), None)

    @property
    def answers_per_row(self) -> int:
        """Answers that a row of the data has, where it has them."""
        return 2 if self.type in PAIRS else 1

    @property
    def has_mismatched(self) -> bool:
        """Whether each prompt comes with an answer to another one as well, to estimate the KL."""
        return self.type == "kto" and (self.kto or KtoSpec()).loss_type == "kto"

    @property
    def pairs(self) -> DpoSpec | None:
        """The settings of a loss of pairs, given or drawn, if that is the loss."""
        if self.type == "dpo":
            return self.dpo or DpoSpec()
        return (self.online_dpo or DpoSpec()) if self.estimator.has_pairs else None

    @property
    def has_reference(self) -> bool:
        """Whether the policy is compared with a reference."""
        return self.kl.in_ != "none" or self.compares_rows or self.estimator.has_teacher

    @property
    def divergence(self) -> DistillationSpec | None:
        """The divergence from a teacher over the whole vocabulary, where that is the loss."""
        if not self.estimator.has_teacher:
            return None
        settings = self.distillation or DistillationSpec()
        return None if settings.divergence == SAMPLED_REVERSE_KL else settings

    @property
    def reprompt(self) -> RepromptSpec | None:
        """How prompts of the teacher are made of what a group drew, where they are."""
        return self.distillation.reprompt if self.distillation is not None else None

    @property
    def is_estimated(self) -> bool:
        """Whether tokens have advantages."""
        return self.given is None and self.divergence is None

    @property
    def reads_reference(self) -> bool:
        """Whether the reference is asked how likely the tokens of the rows are."""
        is_sampled = self.estimator.has_teacher and self.divergence is None
        return self.kl.has_estimate or self.compares_rows or is_sampled

    @property
    def compares_rows(self) -> bool:
        """Whether a loss of whole rows compares them with the reference."""
        if self.pairs is not None:
            return self.pairs.loss.has_reference
        return self.type == "kto" or self.policy_loss.loss.has_reference

    @property
    def whole_groups(self) -> bool:
        """Whether the rows of a group are computed together, as the loss compares them."""
        has_pairs = self.type in PAIRS or self.estimator.has_pairs
        return has_pairs or self.policy_loss.loss.compares_group

    @property
    def compares_answers(self) -> bool:
        """Whether those rows are answers that are given, of which some are held out."""
        return self.given is not None and self.compares_rows

    @property
    def compares_vocabularies(self) -> bool:
        """Whether updates compare the policy with the reference over the whole vocabulary."""
        return self.kl.is_full or self.divergence is not None

    @property
    def estimator(self) -> Estimator:
        """What the job's estimator needs; nothing where there is none."""
        every = (*ESTIMATORS.items(), *GIVEN.items())
        return next(one for name, one in every if name == self.type)

    @property
    def options(self) -> Section | None:
        """The settings of the job's estimator, where it has some and they are given."""
        given: Section | None = getattr(self, self.type) if self.estimator.options else None
        return given
