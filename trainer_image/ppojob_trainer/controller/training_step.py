"""One training step.

generate -> score, together with the forward passes (old and reference log-probabilities, values)
-> record the rows -> advantages -> update critic -> update policy -> sync weights.

The process reward model of PRIME is updated with the scores before the advantages are computed.
Teacher prompts that contain good responses are built before the teacher's pass. Dynamic sampling
scores and records its rows in the batch source. Which passes and updates a job has is decided when
the step is built (`step_plan`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.coefficients import EntropyController
from ppojob_trainer.algorithms.prompt_values import Belief, first_belief, value
from ppojob_trainer.controller.batch import Batch, outcomes_of
from ppojob_trainer.controller.batch_source import BatchSource
from ppojob_trainer.controller.demonstrations import Demonstrations, SupervisedRows
from ppojob_trainer.controller.reprompting import TAUGHT, Reprompting
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.rollout_stages import Draw, RolloutStages, Rows
from ppojob_trainer.controller.row_filters import dropped_rows, filtered_rows
from ppojob_trainer.controller.step_plan import ForwardPass, Updates
from ppojob_trainer.data.order import epoch_order
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.json_value import plain_text
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.metrics.step_metrics import Spread, guidance_metrics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rewards.shaping import ScoreShaping, overlong_penalty
from ppojob_trainer.rpc.messages.rollout import SyncWeights
from ppojob_trainer.rpc.messages.training import Advantaged, Advantages, Forward, Update
from ppojob_trainer.rpc.methods import ADVANTAGES, FORWARD, SYNC_WEIGHTS, UPDATE
from ppojob_trainer.rpc.wire import RequestId

REWARD_KEYS = "spec.algorithm.gdpo.rewardKeys"


def mini_batch_order(spec: PPOJobSpec, step: int, epoch: int) -> list[int]:
    """Return the order of a step's prompts in one epoch, a function of the seed."""
    size = spec.algorithm.prompts_per_step
    if not spec.algorithm.shuffle_mini_batches:
        return list(range(size))
    passes = step * spec.algorithm.epochs + epoch
    return [int(position) for position in epoch_order(size, spec.seed, passes)]


def tracked_values(
    prompts: Sequence[PromptRow], beliefs: Mapping[str, Belief], decay: float
) -> list[Belief]:
    """Return (prompts,) the tracked values (SPO); the initial value is that of the data row."""
    first = [first_belief(prompt.known_scores, decay=decay) for prompt in prompts]
    return [
        beliefs.get(prompt.prompt_digest, own) for prompt, own in zip(prompts, first, strict=True)
    ]


@dataclass(frozen=True)
class StepResult:
    """The result of a step."""

    batch: Batch
    advantaged: Advantaged | None  # None if no advantages are estimated
    statistics: dict[str, float]  # metrics of the passes and updates
    dropped: Sequence[int] = ()  # rows without a score, not trained on
    filtered: Sequence[int] = ()  # rows excluded by the group filter, not trained on
    drawn: Sequence[Batch] = ()  # all generated batches of the step, with replaced prompts

    @property
    def kl(self) -> float | None:
        """Return the mean KL of the KL penalty in the reward, or None."""
        return None if self.advantaged is None else self.advantaged.kl

    @property
    def visits(self) -> Iterator[tuple[str, list[float]]]:
        """Return the digests of the trained prompts, with the rewards of their rows."""
        if self.advantaged is None:
            return
        rewards = self.advantaged.row_rewards
        excluded = self.batch.given_rows.union(self.advantaged.without_tokens)
        for position, prompt in enumerate(self.batch.prompts):
            first = position * self.batch.samples
            rows = range(first, first + self.batch.samples)
            yield prompt.prompt_digest, [rewards[row] for row in rows if row not in excluded]

    @property
    def scores(self) -> list[float]:
        """Return the scores of rows that have one."""
        dropped = set(self.dropped)
        return [score for row, score in enumerate(self.batch.scores) if row not in dropped]


@dataclass(frozen=True)
class TrainingStep:
    """Runs one step on the job's roles."""

    spec: PPOJobSpec
    stages: RolloutStages
    channels: RoleChannels
    passes: tuple[ForwardPass, ...]
    updates: tuple[Updates, ...]
    shaping: ScoreShaping  # transforms the scores
    entropy: EntropyController | None  # adapts the entropy coefficient; None if it is fixed
    source: BatchSource | Demonstrations
    reprompting: Reprompting | None = None  # builds teacher prompts; None: the data has them
    supervised: SupervisedRows | None = None  # demonstrations that the policy also learns

    def run(
        self,
        step: int,
        draw: Draw,
        kl: float,
        entropy: float,
        timer: StepTimer,
        beliefs: Mapping[str, Belief],
    ) -> StepResult:
        """Run the step, after which the rollout engine has the weights of version `step`.

        `kl` and `entropy` are coefficients of loss terms, `beliefs` the tracked values of prompts,
        by digest.
        """
        rows = self.source.rows(step, draw, timer)
        batch, greedy = rows.batch, rows.greedy
        with timer("gen"):
            self.channels.place_rows(batch, answers=self._answers(batch))
        before = self._pass_and_score(rows, timer)
        dropped = dropped_rows(batch, greedy) if self.spec.drops_responses else []
        filtered = filtered_rows(batch, self.spec.algorithm.group_filter, dropped)
        left_out = [*dropped, *filtered]
        has_outcomes = self.spec.algorithm.estimator.critic == "process_reward"
        outcomes = outcomes_of(batch, left_out) if has_outcomes else []
        self._keep(rows, timer)
        untaught: Collection[int] = ()
        if self.reprompting is not None:
            with timer("reprompt"):
                untaught = self.reprompting.prompts_of(batch, dropped)
            before[TAUGHT] = 1.0 - len(untaught) / batch.num_rows
        statistics = self._learn_outcomes(batch, outcomes, timer)
        advantaged = None
        if self.spec.algorithm.is_estimated:
            with timer("adv"):
                tracked = list[Belief]()
                if (spo := self.spec.algorithm.spo) is not None:
                    tracked = tracked_values(batch.prompts, beliefs, spo.decay)
                    statistics["spo/p_hats"] = fmean(map(value, tracked))
                    statistics["spo/Neff"] = fmean(map(sum, tracked))
                advantaged = self._advantages(
                    batch, greedy, kl, left_out, outcomes, tracked, untaught
                )
        if self.entropy is not None:
            entropy = self.entropy.bonus(entropy, before["actor/entropy"])
            before["actor/entropy_coeff"] = entropy
        for updates in self.updates:
            if step >= updates.first_step and not updates.of_outcomes:
                if self.supervised is not None and updates.model == "policy":
                    with timer("data"):
                        before |= self.supervised.begin(step)
                with timer(updates.timer):
                    statistics |= self._update(updates, batch, (kl, entropy))
        with timer("update_weights"):
            self._sync_weights(step)
        # Statistics of a pass over all rows take precedence over those of updates, which skip rows.
        statistics |= before | rows.metrics | self._penalties(batch)
        if self.spec.algorithm.guidance is not None:
            statistics |= guidance_metrics(batch.scores, batch.lengths, batch.given_rows, dropped)
        drawn = rows.rounds or [batch]
        return StepResult(batch, advantaged, statistics, dropped, filtered, drawn)

    def _sync_weights(self, step: int) -> None:
        refresh = self.spec.algorithm.kl.reference_refresh
        is_due = refresh is not None and step % refresh.every_steps == 0
        weights = SyncWeights(step, refresh_reference=is_due)
        id_ = RequestId(0, step, "sync_weights")
        self.stages.roles.broadcast(self.stages.roles.owner, SYNC_WEIGHTS, weights, id_)

    def _answers(self, batch: Batch) -> list[str]:
        """Return (prompts,) the ground truths if their probability is a reward; else nothing."""
        if self.spec.algorithm.answer_reward is None:
            return []
        return [plain_text(prompt.ground_truth) for prompt in batch.prompts]

    def _pass_and_score(self, rows: Rows, timer: StepTimer) -> dict[str, float]:
        """Run the forward passes while reward functions score the rows."""
        with ExitStack() as stack:
            finish_scoring: Callable[[], None] | None = None
            with timer("reward"):
                if rows.greedy is not None:
                    self.stages.score(rows.greedy)
                if not rows.is_recorded:
                    finish_scoring = stack.enter_context(self.stages.start_scoring(rows.batch))
            measured = self._forwards(rows.batch, timer)
            if finish_scoring is not None:
                with timer("reward"):
                    finish_scoring()
        return measured

    def _keep(self, rows: Rows, timer: StepTimer) -> None:
        with timer("write_rows"):
            if rows.greedy is not None:
                self.stages.record(rows.greedy)
            if not rows.is_recorded:
                self.stages.record(rows.batch)

    def _learn_outcomes(
        self, batch: Batch, outcomes: list[float], timer: StepTimer
    ) -> dict[str, float]:
        """Update the process reward model with the scores, and run the passes that follow it."""
        statistics: dict[str, float] = {}
        for updates in self.updates:
            if updates.of_outcomes:
                with timer(updates.timer):
                    statistics |= self._update(updates, batch, (0.0, 0.0), outcomes)
        return statistics | self._forwards(batch, timer, know_outcomes=True)

    def _forwards(
        self, batch: Batch, timer: StepTimer, *, know_outcomes: bool = False
    ) -> dict[str, float]:
        """Run the forward passes before the scores are known, or those after."""
        measured: dict[str, float] = {}
        for forward in self.passes:
            if forward.knows_outcomes == know_outcomes:
                with timer(forward.timer):
                    measured |= self._forward(forward, batch)
        return measured

    def _forward(self, forward: ForwardPass, batch: Batch) -> dict[str, float]:
        self.channels.move_rows(forward.host, batch)
        request, id_ = Forward(forward.model), RequestId(0, batch.step, f"forward/{forward.model}")
        measured = self.stages.roles.broadcast(forward.host, FORWARD, request, id_)[0]
        if forward.column is not None:
            self.channels.move_columns(forward.host, batch, [forward.column], to_owners=True)
        return step_statistics([measured])

    def _advantages(
        self,
        batch: Batch,
        greedy: Batch | None,
        kl_coefficient: float,
        left_out: Sequence[int],
        outcomes: list[float],
        tracked: list[Belief],
        untaught: Collection[int],
    ) -> Advantaged:
        """Have each owner estimate the whole batch and keep its rows, so that all agree exactly."""
        gdpo = self.spec.algorithm.gdpo
        keys = gdpo.reward_keys if gdpo else ()
        masks = self.spec.algorithm.mask_truncated
        masked = {row for row, is_cut in enumerate(batch.truncated) if masks and is_cut}
        request = Advantages(
            scores=self._shaped(batch),
            kl_coefficient=kl_coefficient,
            greedy_scores=[] if greedy is None else self._shaped(greedy),
            rewards=[batch.numbers(key, REWARD_KEYS) for key in keys],
            dropped=list(left_out),
            masked=sorted(masked.union(untaught)),
            step=batch.step,
            outcomes=outcomes,
            baselines=list(map(value, tracked)),
            positives=self._positives(batch),
        )
        id_ = RequestId(0, batch.step, "advantages")
        roles = self.stages.roles
        return roles.broadcast(roles.owner, ADVANTAGES, request, id_)[0]

    def _positives(self, batch: Batch) -> list[int]:
        """Return the positive examples if a loss uses them; else nothing."""
        settings = self.spec.algorithm.positive_examples
        if settings is None:
            return []
        return [row for row, score in enumerate(batch.scores) if score >= settings.min_score]

    def _shaped(self, batch: Batch) -> list[float]:
        return self.shaping.shaped(batch.scores, batch.lengths, batch.truncated)

    def _penalties(self, batch: Batch) -> dict[str, float]:
        """Return metrics of the overlong penalty, under verl's names."""
        limit, penalty = self.shaping.limit, self.shaping.overlong
        if penalty is None:
            return {}
        rewards = [overlong_penalty(length, limit, penalty) for length in batch.lengths]
        penalized = Spread.of([float(reward < 0) for reward in rewards])
        return Spread.of(rewards).named("reward_extra/overlong_reward") | penalized.named(
            "reward_extra/overlong"
        )

    def _update(
        self,
        updates: Updates,
        batch: Batch,
        weights: tuple[float, float],
        outcomes: Sequence[float] = (),
    ) -> dict[str, float]:
        self.channels.move_columns(updates.host, batch, updates.columns)
        measured, step = [], batch.step
        order = updates.mini_batches(lambda epoch: mini_batch_order(self.spec, step, epoch))
        supervised = self.supervised if updates.model == "policy" else None
        weight = 0.0 if supervised is None else supervised.coefficient(step)
        for index, positions in enumerate(order):
            given = supervised.of_update(index) if supervised is not None and weight else []
            request = Update(updates.model, positions, *weights, list(outcomes), given, weight)
            id_ = RequestId(0, step, f"update/{updates.model}", index)
            measured.append(self.stages.roles.broadcast(updates.host, UPDATE, request, id_)[0])
        return step_statistics(measured)
