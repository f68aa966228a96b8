"""Lookahead: engines generate rows of later steps before the current one has trained.

Engines in pods of their own work while a step trains: they finish the rows of the next step, with
the weights that the current step begins with, and begin those of the following steps. Engines in
the training ranks alternate with training: they finish the rows of a step, and advance those of the
following steps beside it. So the generating weights are some versions older than the training ones
(staleness), independent of timing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.engines import StandaloneEngines
from ppojob_trainer.controller.rollout_round import Draw, RolloutRound, Rows
from ppojob_trainer.controller.rollout_stages import Drawn
from ppojob_trainer.controller.row_tape import AHEAD_FOLDER
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import Place, PromptOrder
from ppojob_trainer.errors import JobFailed
from ppojob_trainer.metrics.step_metrics import staleness_metrics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rpc.messages.saving import FileEntry


@dataclass(frozen=True)
class Lookahead:
    """The next steps, whose rows may be generated before the current one has trained.

    Attributes:
        size: prompts per step.
        steps: lookahead in steps: also the maximum staleness of a token, in versions.
        total_steps: number of steps, at most.
        passes: epochs over the data, after which the run ends; None if steps are counted.
        order: of the prompts, from which those of a step are drawn once it begins.
    """

    rollout_round: RolloutRound
    size: int
    steps: int
    total_steps: int
    passes: int | None
    dataset: PromptDataset
    order: PromptOrder

    def batches_from(self, step: int, place: Place) -> list[Drawn]:
        """Return the batches of a step at a place in the prompt order, and of later steps."""
        steps = min(self.steps, self.total_steps - step + 1)
        if self.passes is not None and self.order.passes_read(place, self.size) >= self.passes:
            return []
        batches = self.order.batches_behind(place, self.size, steps)
        return [self.rollout_round.batches(self.dataset.rows(rows)) for rows in batches]

    def next_rounds(self, most: int) -> list[Drawn]:
        """Return the next rounds, as many as the lookahead generates beside one, at most `most`.

        They are numbered, since which step uses them is not known.
        """
        place, first = self.order.place, self.rounds_begun + 1
        batches = self.order.batches_behind(place, self.size, min(self.steps, most))
        drawn = (self.rollout_round.batches(self.dataset.rows(rows))[0] for rows in batches)
        return [(replace(batch, number=number), None) for number, batch in enumerate(drawn, first)]

    @property
    def rounds_begun(self) -> int:
        """Return how many rounds were begun in the run."""
        return self.order.batches_read(self.order.place, self.size)

    def batches_with(self, step: int, draw: Draw, timer: StepTimer) -> tuple[Drawn, list[Drawn]]:
        """Return the batches of a step that begins now, and of later ones."""
        with timer("data"):
            drawn = self.rollout_round.batches(draw(self.size))
            return drawn, self.batches_from(step + 1, self.order.place)

    def staleness(self, batch: Batch, step: int) -> dict[str, float]:
        """Return the staleness metrics of a step's rows.

        Raises:
            JobFailed: a token's weights are older than the job allows.
        """
        given = batch.given_rows
        drawn = [tokens for row, tokens in enumerate(batch.versions) if row not in given]
        metrics = staleness_metrics(drawn, step - 1)
        if (oldest := metrics["async/staleness_max"]) > self.steps:
            raise JobFailed(
                f"step {step}: got tokens drawn by weights {oldest:g} versions older: "
                f"spec.rollout.maxStaleness allows {self.steps}"
            )
        return metrics


@dataclass(frozen=True)
class Prefetcher:
    """Prefetch by engines in pods of their own: later steps are generated while one trains.

    They work in phases, one per step: the rows of the next step to their end, and those of the
    following steps as far as they get. Between two phases they sync the newest weights. All of it
    is a function of weights, prompt order and seed, since phases end by what was generated.

    The first step of a run has its rows generated on demand, and so has one after a checkpoint
    without rows: that of a run which ended there. The last step prefetches nothing.
    """

    later: Lookahead
    engines: StandaloneEngines

    def wait(self, step: int, drawn: Drawn, beside: Sequence[Drawn], timer: StepTimer) -> None:
        """Wait for the rows of a step; `beside` are those of later steps generated with them."""
        stages, (batch, greedy) = self.later.rollout_round.stages, drawn
        is_first = step == stages.tape.began + 1
        if is_first and self._is_lost(batch, step):
            self.begin(step, step - 1, [drawn, *beside], timer)
        is_begun = not is_first
        stages.generate(batch, step, greedy, timer, ahead=beside, is_begun=is_begun)

    def begin(self, step: int, version: int, drawn: Sequence[Drawn], timer: StepTimer) -> None:
        """Begin to generate a step and those after it, with the weights of a version.

        Rows on disk are generated again if others are generated beside them: how far those get in a
        phase depends on the whole batch.
        """
        stages, (batch, greedy) = self.later.rollout_round.stages, drawn[0]
        if self.later.steps == 1 and stages.tape.is_replayed(batch, step):
            return
        with timer("update_weights"):
            self.engines.prepare(version)
        with timer("gen"):
            self.engines.begin(*stages.generation(batch, step, greedy, drawn[1:]))

    def save(self, progress: Progress, folder: str, act: str) -> list[FileEntry]:
        """Write the rows of the step after a state into its checkpoint, once they are generated.

        The folder is that of the checkpoint, relative to the run folder; `act` names the attempt to
        write it. Engines write rows in flight of later steps as their state.

        Raises:
            RoleLost, StorageError: as whatever else is written.
        """
        stages, step = self.later.rollout_round.stages, progress.step + 1
        following = self.later.batches_from(step, progress.data.place)
        if not following:
            return []
        batch, greedy = following[0]
        is_begun = step > stages.tape.began + 1
        stages.generate(batch, step, greedy, ahead=following[1:], is_begun=is_begun)
        files = []
        for rows in [batch] if greedy is None else [batch, greedy]:
            path, count = f"{AHEAD_FOLDER}/{rows.purpose}", rows.num_rows
            unscored = replace(rows, scores=[math.nan] * count, extras=[b"{}"] * count)
            files += [
                msgspec.structs.replace(file, path=f"{path}/{file.path}", role="rollout")
                for file in stages.write_rows(unscored, step, f"{folder}/{path}", act)
            ]
        return files

    def _is_lost(self, batch: Batch, step: int) -> bool:
        """Whether a step's rows are recorded, but not those that were generated beside them."""
        tape = self.later.rollout_round.stages.tape
        is_there = tape.is_replayed(batch, step) and not tape.is_prefetched(batch, step)
        return self.later.steps > 1 and is_there


@dataclass(frozen=True)
class PrefetchedSource:
    """Batch source with prefetch: rows of the next steps are generated while a step trains."""

    ahead: Prefetcher

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Wait for the rows of a step, and begin those of the next one.

        Raises:
            JobFailed: a token's weights are older than the job allows.
        """
        ahead, later = self.ahead, self.ahead.later
        drawn, following = later.batches_with(step, draw, timer)
        ahead.wait(step, drawn, following[: later.steps - 1], timer)
        if following:
            ahead.begin(step + 1, step - 1, following, timer)
        return Rows(*drawn, metrics=later.staleness(drawn[0], step))


@dataclass(frozen=True)
class InterleavedSource:
    """Batch source of engines that alternate with training, with lookahead beside a step's rows.

    Unfinished rows continue in the next step; these ranks save them as their state.
    """

    later: Lookahead

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate the rows of a step to their end.

        Raises:
            JobFailed: a token's weights are older than the job allows.
        """
        drawn, following = self.later.batches_with(step, draw, timer)
        self.generate(step, drawn, following, timer)
        return Rows(*drawn, metrics=self.later.staleness(drawn[0], step))

    def generate(
        self, step: int, drawn: Drawn, following: Sequence[Drawn], timer: StepTimer
    ) -> None:
        """Generate rows to their end, and the following ones as far as they get.

        Rows on disk are generated again if others are generated beside them: how far those get in a
        phase depends on the whole batch.
        """
        stages, (batch, greedy) = self.later.rollout_round.stages, drawn
        if following and stages.tape.is_replayed(batch, step):
            with timer("gen"):
                stages.ask(batch, step, greedy, following)
        stages.generate(batch, step, greedy, timer, ahead=following)
