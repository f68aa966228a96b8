"""What a job learns from: advantage estimators with their settings, and answers that are given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.policy_loss import CustomSpec
from ppojob_api.v1alpha1.preferences import DpoSpec, KtoSpec, RewardModelTrainingSpec
from ppojob_api.v1alpha1.section import Items, Name, Section

AlgorithmType = Literal[
    "ppo",
    "grpo",
    "grpo_passk",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "maxrl",
    "reinforce",
    "remax",
    "spo",
    "gdpo",
    "gigpo",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
    "prime",
    "distillation",
    "online_dpo",
    "custom",
]
GivenType = Literal["sft", "dpo", "kto", "reward_model"]
TrainingType = Literal[AlgorithmType, GivenType]
SAMPLED_REVERSE_KL: Final = "sampled_reverse_kl"
"""The divergence from a teacher that is guessed from the tokens that were drawn."""

Weight = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]
RewardKey = Annotated[str, Field(min_length=1, max_length=253)]


class GrpoSpec(Section):
    """Settings of type grpo (arXiv:2402.03300)."""

    normalize_by_std: bool = True
    """Divide by the group's standard deviation (GRPO); false is Dr. GRPO (arXiv:2503.20783).
    verl: algorithm.norm_adv_by_std_in_grpo, true."""


class GrpoPasskSpec(Section):
    """Settings of type grpo_passk (arXiv:2503.19595)."""

    normalize_by_std: bool = True
    """Divide by the group's standard deviation. verl: algorithm.norm_adv_by_std_in_grpo, true."""


class GdpoSpec(Section):
    """Settings of type gdpo (arXiv:2601.05242), which requires rewardKeys."""

    reward_keys: Annotated[Items[RewardKey], Field(min_length=1, max_length=64)]
    """Rewards that are normalized separately: names of numbers that reward functions return beside
    the score; score is the score itself. verl: algorithm.gdpo_reward_keys."""

    reward_weights: Annotated[Items[Weight], Field(max_length=64)] = ()
    """Weight of each of them, in the same order; empty: 1 each. verl:
    algorithm.gdpo_reward_weights."""

    normalize_by_std: bool = True
    """Divide each reward by the group's standard deviation.
    verl: algorithm.norm_adv_by_std_in_grpo, true."""


class GigpoSpec(Section):
    """Settings of type gigpo (arXiv:2505.10978)."""

    turn_weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Weight of the comparison of turns from the same state, in addition to the comparison of
    responses in a group. verl-agent: algorithm.gigpo.step_advantage_w, 1."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Discount per turn; GiGPO: 0.95. verl-agent: algorithm.gamma, 1."""

    normalize_by_std: bool = True
    """Divide both comparisons by their standard deviation. verl-agent: algorithm.gigpo.mode,
    mean_norm, which is false; true is mean_std_norm."""


class SpoSpec(Section):
    """Settings of type spo (arXiv:2509.13232)."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.875
    """Decay of earlier scores of a prompt at each new visit; 1: no decay. SPO: 0.875 to 0.96, by
    the KL between visits. verl: trainer.spo.rho.value, 0.875."""


class PpoSpec(Section):
    """Settings of type ppo (GAE: arXiv:1506.02438); those of its value model are in spec.critic."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token. verl: algorithm.gamma, 1."""

    lam: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 1.0
    """Lambda of GAE: 0 relies on the critic, 1 on the return. verl: algorithm.lam, 1."""

    critic_lambda: Annotated[float, Field(ge=0, le=1)] | None = None
    """Lambda of the returns that the critic learns; absent: `lambda`, which is that of the
    advantages (VC-PPO, arXiv:2503.01491, and VAPO, arXiv:2504.05118: 1)."""

    length_adaptive_alpha: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Lambda of the advantages of a response of l trained tokens is 1 - 1 / (alpha l), at least 0,
    so it is larger for longer responses; absent: `lambda` (VAPO, arXiv:2504.05118: 0.05)."""

    whiten_rewards: bool = False
    """Scale token rewards to a standard deviation of 1 over the trained tokens of the step; their
    mean stays. TRL: whiten_rewards, false."""


class ReinforcePlusPlusSpec(Section):
    """Settings of type reinforce_plus_plus (arXiv:2501.03262)."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token. verl: algorithm.gamma, 1."""


class PrimeSpec(Section):
    """Settings of type prime (arXiv:2502.01456); those of its model are in spec.critic."""

    beta: Annotated[float, Field(gt=0, le=1_000_000)] = 0.05
    """Reward of a token per nat of log-ratio between the process reward model and its reference;
    its loss uses the same. verl: reward_model.model.beta_train, 0.05."""

    process_weight: Annotated[float, Field(gt=0, le=1_000_000)] = 5.0
    """Weight of the process rewards of tokens. verl: algorithm.reward_dpo_coef, 5."""

    outcome_weight: Annotated[float, Field(ge=0, le=1_000_000)] = 5.0
    """Weight of the outcome score of a response. verl: algorithm.reward_gt_coef, 5."""

    normalize: bool = True
    """Divide process rewards by the step's largest sum of the rewards from a token to the end.
    verl: reward_model.prime_norm, batch_norm."""

    update: Literal["before", "after"] = "before"
    """When the process reward model learns the scores of a step: before or after it rewards the
    tokens. verl: reward_model.model.update, before."""


Words = Annotated[str, Field(min_length=1, max_length=65_536)]


class RepromptSpec(Section):
    """Teacher prompts that contain successful responses of the group (SDPO: arXiv:2601.20802)."""

    min_score: Annotated[float, Field(ge=-1_000_000, le=1_000_000)] = 1.0
    """The teacher of a row reads the first other response of its group with at least this score.
    TRL: success_reward_threshold, 1."""

    feedback_key: Name | None = None
    """Text that a reward function returns for a row beside its score, which its teacher reads too;
    absent: none. TRL: include_environment_feedback."""

    template: Words = "{prompt}\n{solution}{feedback}\nNow solve the original question correctly.\n"
    """Replaces the last message of the prompt, or a prompt that is text. TRL: reprompt_template."""

    solution_template: Words = "\nA correct solution:\n\n{response}\n"
    """{solution} of the template, if there is such a response. TRL: solution_template."""

    feedback_template: Words = "\nFeedback on your earlier attempt:\n\n{feedback}\n"
    """{feedback} of the template, if there is feedback. TRL: feedback_template."""


class DistillationSpec(Section):
    """Settings of type distillation: learning from spec.reference (GKD: arXiv:2306.13649)."""

    divergence: Literal["sampled_reverse_kl", "reverse_kl", "forward_kl", "jsd"] = (
        "sampled_reverse_kl"
    )
    """The divergence to minimize. sampled_reverse_kl: KL(policy, teacher) by policy gradient, on
    sampled tokens only. The others are losses over the whole vocabulary: reverse_kl: KL(policy,
    teacher); forward_kl: KL(teacher, policy); jsd: between both. verl: distillation_loss.loss_mode,
    of which forward_kl_topk leaves unlikely tokens out."""

    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With jsd, the teacher's share of the mixture, above 0 and below 1. TRL: beta, 0.5, where 0 is
    forward_kl and 1 is reverse_kl."""

    max_token_loss: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Largest divergence of a token: a larger one is clipped and gives no gradient; with
    sampled_reverse_kl the advantage is clipped to plus and minus this. Absent: no bound. verl:
    distillation_loss.loss_max_clamp."""

    reprompt: RepromptSpec | None = None
    """Build the teacher's prompts from good responses of the group; rows whose teacher has nothing
    to read are not trained on. Absent: prompts are those of the data."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """What an advantage estimator needs of a job."""

    # The section of its settings, a field of `AlgorithmSpec` of the estimator's name.
    options: type[Section] | None = None
    compares_group: bool = False  # it compares the responses of one prompt, so it needs two of them
    # What the critic is that is trained beside the policy: a value model, whose values it reads, or
    # a process reward model, whose rewards of tokens it reads; None: there is none.
    critic: Literal["value", "process_reward"] | None = None
    compares_turns: bool = False  # it compares the turns of conversations
    has_greedy: bool = False  # it reads the score of a greedy response to each prompt
    # It reads what each prompt scored when it was last drawn, which the job keeps.
    tracks_values: bool = False
    has_reward_keys: bool = False  # it reads several rewards of a row, those that its options name
    # It reads the squared probabilities of the policy before the update, summed over the
    # vocabulary, at each token.
    has_sum_pi_squared: bool = False
    has_teacher: bool = False  # it reads what the reference says of each token, and no reward
    # It makes a pair of the best and the worst response, and the loss is one of pairs.
    has_pairs: bool = False

    @property
    def has_critic(self) -> bool:
        """Whether a model is trained beside the policy."""
        return self.critic is not None

    @property
    def compares_scores(self) -> bool:
        """Whether it compares the responses of a prompt by nothing but what each scored."""
        reads_more = self.has_critic or self.compares_turns or self.has_sum_pi_squared
        return self.compares_group and not reads_more and not self.has_pairs


ESTIMATORS: Final[Mapping[AlgorithmType, Estimator]] = {
    "ppo": Estimator(PpoSpec, critic="value"),
    "grpo": Estimator(GrpoSpec, compares_group=True),
    "grpo_passk": Estimator(GrpoPasskSpec, compares_group=True),
    "rloo": Estimator(compares_group=True),
    "reinforce_plus_plus": Estimator(ReinforcePlusPlusSpec),
    "reinforce_plus_plus_baseline": Estimator(compares_group=True),
    "opo": Estimator(compares_group=True),
    "gpg": Estimator(compares_group=True),
    "maxrl": Estimator(compares_group=True),
    "reinforce": Estimator(),
    "remax": Estimator(has_greedy=True),
    "spo": Estimator(SpoSpec, tracks_values=True),
    "gdpo": Estimator(GdpoSpec, compares_group=True, has_reward_keys=True),
    "gigpo": Estimator(GigpoSpec, compares_group=True, compares_turns=True),
    "optimal_token_baseline": Estimator(compares_group=True, has_sum_pi_squared=True),
    "tir_optimal_token_baseline": Estimator(compares_group=True, has_sum_pi_squared=True),
    "prime": Estimator(PrimeSpec, compares_group=True, critic="process_reward"),
    "distillation": Estimator(DistillationSpec, has_teacher=True),
    "online_dpo": Estimator(DpoSpec, compares_group=True, has_pairs=True),
    "custom": Estimator(CustomSpec),
}
"""Every estimator by its `type`; what it computes stands in the trainer's table of that name."""

GIVEN: Final[Mapping[GivenType, Estimator]] = {
    "sft": Estimator(),
    "dpo": Estimator(DpoSpec),
    "kto": Estimator(KtoSpec),
    "reward_model": Estimator(RewardModelTrainingSpec),
}
"""Every `type` without an estimator: rows have their answers, and nothing is generated."""

PAIRS: Final[tuple[GivenType, ...]] = ("dpo", "reward_model")
"""Those whose rows have two answers, of which one was preferred."""
