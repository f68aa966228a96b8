"""Step plan: the forward passes and updates of a step, derived from the job's settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.controller.roles import RoleGroup


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass over the rows before the updates of the policy."""

    model: str
    host: RoleGroup
    column: str | None  # column that it computes for the owners, if any
    timer: str  # its timer stage
    knows_outcomes: bool = False  # whether it runs after the scores are known


@dataclass(frozen=True)
class Updates:
    """The optimizer steps of one model in a step."""

    model: str
    host: RoleGroup
    timer: str  # its timer stage
    prompts_per_step: int
    mini_batch_prompts: int  # prompts of one optimizer step
    epochs: int
    first_step: int = 1  # the first step that trains it
    columns: tuple[str, ...] = ()  # columns that it needs besides that of its own forward pass
    of_outcomes: bool = False  # whether it learns the scores, before the advantages are computed

    def mini_batches(self, order: Callable[[int], list[int]]) -> list[list[int]]:
        """Return the prompt positions of each optimizer step; `order` maps epochs to orders."""
        size = self.mini_batch_prompts
        return [
            positions[first : first + size]
            for positions in map(order, range(self.epochs))
            for first in range(0, len(positions), size)
        ]

    @property
    def of_step(self) -> int:
        """Return the number of optimizer steps in a step."""
        return self.epochs * -(-self.prompts_per_step // self.mini_batch_prompts)

    def done_after(self, step: int) -> int:
        """Return the number of optimizer steps up to the end of a step."""
        return max(0, step - self.first_step + 1) * self.of_step


def needs_old_logprobs(algorithm: AlgorithmSpec) -> bool:
    """Whether a forward pass computes the policy's log-probabilities before its updates.

    With one optimizer step per batch the update computes them itself, at a ratio of 1. A divergence
    over the vocabulary and a preference loss need none. They are needed before the update for a KL
    in the reward, a teacher's log-probabilities of sampled tokens, rollout correction, token
    selection by entropy, an entropy-dependent bonus, a reward for certainty, and estimators that
    use probabilities. With `bypass` the engine's log-probabilities replace them. The pass also
    records routing decisions for several updates.
    """
    if algorithm.certainty_reward is not None:
        return True
    reads_entropy = algorithm.high_entropy_share < 1.0 or algorithm.entropy_control is not None
    reads_more = algorithm.is_corrected_before or algorithm.estimator.has_sum_pi_squared
    mini_batch = algorithm.mini_batch_prompts or algorithm.prompts_per_step
    several_updates = mini_batch < algorithm.prompts_per_step or algorithm.epochs > 1
    if several_updates and algorithm.router_replay == "recompute":
        return True
    if algorithm.divergence is not None or algorithm.estimator.has_pairs:
        return False
    has_teacher = algorithm.estimator.has_teacher
    if algorithm.kl.in_ == "reward" or has_teacher or reads_entropy or reads_more:
        return True
    return several_updates and not algorithm.is_bypass


def passes_of(spec: PPOJobSpec, hosts: Mapping[str, RoleGroup]) -> tuple[ForwardPass, ...]:
    """Return the forward passes of a step in order; none without training."""
    if not spec.steps.trains:
        return ()
    passes = list[ForwardPass]()
    if spec.algorithm.given is None and needs_old_logprobs(spec.algorithm):
        actor = hosts["actorRollout"]
        passes.append(ForwardPass("policy", actor, "old_logprobs", "old_log_prob"))
    if spec.algorithm.reads_reference:
        is_shown = spec.algorithm.reprompt is not None
        host = hosts["reference"]
        passes.append(ForwardPass("reference", host, "ref_logprobs", "ref", is_shown))
    if spec.algorithm.estimator.critic == "value":
        passes.append(ForwardPass("critic", hosts["critic"], "values", "values"))
    if (prime := spec.algorithm.prime) is not None:
        critic, is_first = hosts["critic"], prime.update == "before"
        passes.append(ForwardPass("critic_reference", critic, None, "critic_ref"))
        passes.append(ForwardPass("critic", critic, "process_rewards", "critic_rewards", is_first))
    return tuple(passes)


def updates_of(spec: PPOJobSpec, hosts: Mapping[str, RoleGroup]) -> tuple[Updates, ...]:
    """Return the updates of a step in order, the policy's last; none without training."""
    if not spec.steps.trains:
        return ()
    algorithm, critic = spec.algorithm, spec.critic
    size = algorithm.prompts_per_step
    policy = Updates(
        model="policy",
        host=hosts["actorRollout"],
        timer="update_actor",
        prompts_per_step=size,
        mini_batch_prompts=algorithm.mini_batch_prompts or size,
        epochs=algorithm.epochs,
        first_step=1 + (critic.warmup_steps if critic else 0),
    )
    if critic is None:
        return (policy,)
    of_outcomes = algorithm.estimator.critic == "process_reward"
    own = Updates(
        model="critic",
        host=hosts["critic"],
        timer="update_critic",
        prompts_per_step=size,
        mini_batch_prompts=critic.mini_batch_prompts or policy.mini_batch_prompts,
        epochs=critic.epochs or algorithm.epochs,
        columns=() if of_outcomes else _columns_of_values(spec),
        of_outcomes=of_outcomes,
    )
    return (own, policy)


def _columns_of_values(spec: PPOJobSpec) -> tuple[str, ...]:
    algorithm, correction = spec.algorithm, spec.algorithm.rollout_correction
    rejects = algorithm.is_corrected_before and correction is not None and correction.rejection
    columns = ["returns"]
    if rejects or spec.leaves_responses_out or algorithm.mask_truncated:
        columns.append("update_mask")
    if algorithm.resampling is not None:
        columns.append("copies")
    return tuple(columns)
