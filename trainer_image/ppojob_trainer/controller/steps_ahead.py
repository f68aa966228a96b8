"""Rows of several steps at once: engines begin with those of later steps before one has trained.

Engines in pods of their own draw while a step trains: the rows of the next one, with the weights
that this step begins with, and begin with those of the steps behind it. Engines in the ranks that
train draw by turns with the training: the rows of a step to their end, and beside them those of
the steps behind it. So rows are drawn by weights some versions older than those that train on them,
whatever takes how long.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.engines import StandaloneEngines
from ppojob_trainer.controller.one_round import Draw, OneRound, Rows
from ppojob_trainer.controller.rollout_stages import Drawn
from ppojob_trainer.controller.row_tape import AHEAD_FOLDER
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import Place, PromptOrder
from ppojob_trainer.errors import JobFailed
from ppojob_trainer.metrics.step_metrics import staleness_metrics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rpc.messages.saving import FileEntry


@dataclass(frozen=True)
class LaterSteps:
    """The steps behind one, whose rows may be drawn before it has trained.

    Attributes:
        size: prompts that are drawn of each step.
        steps: how many, behind the one that trains; by so many versions the weights that draw a
            token are older than those that train on it, at most.
        total_steps: how many there are, at most.
        passes: over the data, behind which the run ends; None where steps are counted.
        order: of the prompts, from which those of a step are drawn once it begins.
    """

    one_round: OneRound
    size: int
    steps: int
    total_steps: int
    passes: int | None
    dataset: PromptDataset
    order: PromptOrder

    def drawn_from(self, step: int, place: Place) -> list[Drawn]:
        """What is drawn for a step that begins at a place in the order of prompts, and behind."""
        steps = min(self.steps, self.total_steps - step + 1)
        if self.passes is not None and self.order.passes_read(place, self.size) >= self.passes:
            return []
        batches = self.order.batches_behind(place, self.size, steps)
        return [self.one_round.batches(self.dataset.rows(rows)) for rows in batches]

    def rounds_behind(self, most: int) -> list[Drawn]:
        """The rounds that come next, as many as are drawn beside another, and `most` at most.

        They are numbered, since which step takes them is not known.
        """
        place, first = self.order.place, self.rounds_read + 1
        batches = self.order.batches_behind(place, self.size, min(self.steps, most))
        drawn = (self.one_round.batches(self.dataset.rows(rows))[0] for rows in batches)
        return [(replace(batch, number=number), None) for number, batch in enumerate(drawn, first)]

    @property
    def rounds_read(self) -> int:
        """How many were begun in the run."""
        return self.order.batches_read(self.order.place, self.size)

    def drawn_with(self, step: int, draw: Draw, timer: StepTimer) -> tuple[Drawn, list[Drawn]]:
        """What is drawn for a step that begins now, and for those behind it."""
        with timer("data"):
            drawn = self.one_round.batches(draw(self.size))
            return drawn, self.drawn_from(step + 1, self.order.place)

    def staleness(self, batch: Batch, step: int) -> dict[str, float]:
        """By how much the weights that drew the rows of a step are older.

        Raises:
            JobFailed: a token is of older weights than the job allows.
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
class DrawnAhead:
    """What engines in pods of their own draw of later steps while one trains.

    They draw in phases, one a step: the rows of the next step to their end, and those of the steps
    behind it as far as they come. Between two phases they take the newest weights. All of it is a
    function of weights, order of prompts and seed, since phases end by what was drawn.

    The first step of a run has its rows drawn at once, and so has one behind a checkpoint without
    rows: that of a run which ended there. The last step has none drawn.
    """

    later: LaterSteps
    engines: StandaloneEngines

    def wait(self, step: int, drawn: Drawn, beside: Sequence[Drawn], timer: StepTimer) -> None:
        """Wait for the rows of a step; `beside` are those behind it that are drawn with them."""
        stages, (batch, greedy) = self.later.one_round.stages, drawn
        is_first = step == stages.tape.began + 1
        if is_first and self._is_lost(batch, step):
            self.begin(step, step - 1, [drawn, *beside], timer)
        is_begun = not is_first
        stages.generate(batch, step, greedy, timer, ahead=beside, is_begun=is_begun)

    def begin(self, step: int, version: int, drawn: Sequence[Drawn], timer: StepTimer) -> None:
        """Have the engines begin with a step and those behind it, with the weights of a version.

        Rows that are on the disk are drawn again where others are drawn beside them: how far those
        come in a phase depends on their company.
        """
        stages, (batch, greedy) = self.later.one_round.stages, drawn[0]
        if self.later.steps == 1 and stages.tape.is_replayed(batch, step):
            return
        with timer("update_weights"):
            self.engines.prepare(version)
        with timer("gen"):
            self.engines.begin(*stages.generation(batch, step, greedy, drawn[1:]))

    def save(self, progress: Progress, folder: str, act: str) -> list[FileEntry]:
        """Write the rows of the step behind a state into its checkpoint, once they are drawn.

        The folder is that of the checkpoint, relative to the run folder; `act` is the name of the
        attempt to make it. What is under way of later steps, engines write as their state.

        Raises:
            RoleLost, StorageError: as whatever else is written.
        """
        stages, step = self.later.one_round.stages, progress.step + 1
        following = self.later.drawn_from(step, progress.data.place)
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
        """Whether the rows of a step are there, and not what was drawn in their company."""
        tape = self.later.one_round.stages.tape
        is_there = tape.is_replayed(batch, step) and not tape.is_ahead(batch, step)
        return self.later.steps > 1 and is_there


@dataclass(frozen=True)
class StepsAhead:
    """Has rows of the steps behind it drawn while a step trains."""

    ahead: DrawnAhead

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Wait for the rows of a step, and have those of the next one begun.

        Raises:
            JobFailed: a token is of older weights than the job allows.
        """
        ahead, later = self.ahead, self.ahead.later
        drawn, following = later.drawn_with(step, draw, timer)
        ahead.wait(step, drawn, following[: later.steps - 1], timer)
        if following:
            ahead.begin(step + 1, step - 1, following, timer)
        return Rows(*drawn, metrics=later.staleness(drawn[0], step))


@dataclass(frozen=True)
class StepsBeside:
    """Has rows of the steps behind it drawn beside those of a step, by engines that then train.

    What is not drawn to its end goes on in the next step; these ranks save it as their state.
    """

    later: LaterSteps

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Draw the rows of a step to their end.

        Raises:
            JobFailed: a token is of older weights than the job allows.
        """
        drawn, following = self.later.drawn_with(step, draw, timer)
        self.generate(step, drawn, following, timer)
        return Rows(*drawn, metrics=self.later.staleness(drawn[0], step))

    def generate(
        self, step: int, drawn: Drawn, following: Sequence[Drawn], timer: StepTimer
    ) -> None:
        """Draw rows to their end, and those that follow as far as they come.

        Rows that are on the disk are drawn again where others are drawn beside them: how far those
        come in a phase depends on their company.
        """
        stages, (batch, greedy) = self.later.one_round.stages, drawn
        if following and stages.tape.is_replayed(batch, step):
            with timer("gen"):
                stages.ask(batch, step, greedy, following)
        stages.generate(batch, step, greedy, timer, ahead=following)
