"""One step of the loop, in the order of the paper.

generate -> score -> (old, reference log-probabilities) -> advantages -> update -> sync weights.
What a job does not need (a reference without KL, old log-probabilities when the step is one
update) is decided when the step is built, never inside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.rollout_stages import RolloutStages
from ppojob_trainer.data.dataset import PromptRow
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rpc.messages import Advantaged, Advantages, Logprobs, SyncWeights, Update
from ppojob_trainer.rpc.methods import ADVANTAGES, LOGPROBS, SYNC_WEIGHTS, UPDATE, Method
from ppojob_trainer.rpc.wire import RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)
Statistics = dict[str, float]


@dataclass(frozen=True)
class ForwardPass:
    """A pass over the rows before the update: which model, and the timer's name for it."""

    model: str
    timer: str


def forward_passes(algorithm: AlgorithmSpec) -> tuple[ForwardPass, ...]:
    """Which log-probabilities a step needs beside those of the update itself.

    The policy's old ones are the update's own when the whole batch is one optimizer step: then
    the ratio is one by definition, and a pass is saved. A KL in the reward needs them before.
    """
    passes = []
    mini_batch = algorithm.mini_batch_prompts or algorithm.prompts_per_step
    several_updates = mini_batch < algorithm.prompts_per_step or algorithm.epochs > 1
    if several_updates or algorithm.kl.in_ == "reward":
        passes.append(ForwardPass("policy", "old_log_prob"))
    if algorithm.kl.in_ != "none":
        passes.append(ForwardPass("reference", "ref"))
    return tuple(passes)


def mini_batches(algorithm: AlgorithmSpec, order: Callable[[int], list[int]]) -> list[list[int]]:
    """Positions of the prompts of each optimizer step of a step.

    Args:
        algorithm: batch sizes and epochs.
        order: the order of the prompts in an epoch, a permutation of `range(promptsPerStep)`.
    """
    size = algorithm.mini_batch_prompts or algorithm.prompts_per_step
    batches = []
    for epoch in range(algorithm.epochs):
        positions = order(epoch)
        batches += [positions[i : i + size] for i in range(0, len(positions), size)]
    return batches


def updates_per_step(algorithm: AlgorithmSpec) -> int:
    """Optimizer steps of a step."""
    return len(mini_batches(algorithm, lambda _: list(range(algorithm.prompts_per_step))))


def mean_of(statistics: list[Statistics]) -> Statistics:
    """The mean of each named number over the optimizer steps of a step."""
    return {
        name: sum(entry[name] for entry in statistics) / len(statistics) for name in statistics[0]
    }


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind for the records.

    Attributes:
        batch: the rows with their scores.
        advantaged: rewards and advantages.
        statistics: of the update and of the weight sync.
        num_updates: optimizer steps taken.
    """

    batch: Batch
    advantaged: Advantaged
    statistics: Statistics
    num_updates: int


@dataclass(frozen=True)
class TrainingStep:
    """Runs one step on the job's roles.

    Attributes:
        roles: the processes of the job.
        actor: the policy's role.
        stages: generation and scoring.
        algorithm: what to do.
        passes: forward passes before the update.
        mini_batch_order: (step, epoch) -> order of the prompts.
    """

    roles: Roles
    actor: RoleGroup
    stages: RolloutStages
    algorithm: AlgorithmSpec
    passes: tuple[ForwardPass, ...]
    mini_batch_order: Callable[[int, int], list[int]]

    def run(
        self, step: int, prompts: list[PromptRow], kl_coefficient: float, timer: StepTimer
    ) -> StepResult:
        """Do the step; afterwards the rollout engine holds the weights of version `step`.

        Args:
            step: number of the step, from 1.
            prompts: the batch.
            kl_coefficient: for this step.
            timer: takes the seconds of each stage.

        """
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt)
        with timer("gen"):
            self.stages.generate(batch, step)
        with timer("reward"):
            self.stages.score(batch, step)
        for forward in self.passes:
            with timer(forward.timer):
                self._ask(LOGPROBS, Logprobs(forward.model), step, f"logprobs/{forward.model}")
        with timer("adv"):
            advantaged = self._ask(
                ADVANTAGES, Advantages(batch.scores, kl_coefficient), step, "advantages"
            )
        with timer("update_actor"):
            updates = self._update(step, kl_coefficient)
        with timer("update_weights"):
            self._ask(SYNC_WEIGHTS, SyncWeights(step), step, "sync_weights")
        return StepResult(batch, advantaged, mean_of(updates), len(updates))

    def _update(self, step: int, kl_coefficient: float) -> list[Statistics]:
        batches = mini_batches(self.algorithm, lambda epoch: self.mini_batch_order(step, epoch))
        return [
            self._ask(UPDATE, Update(positions, kl_coefficient), step, "update", index).values
            for index, positions in enumerate(batches)
        ]

    def _ask(
        self,
        method: Method[Any, Answer],
        request: msgspec.Struct,
        step: int,
        stage: str,
        index: int = 0,
    ) -> Answer:
        id_ = RequestId(0, step, stage, index)
        (answer,) = self.roles.ask(self.actor, method, [request], id_)
        return answer
