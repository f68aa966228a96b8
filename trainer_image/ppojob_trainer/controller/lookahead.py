"""Lookahead: rows of later steps are generated before the current step has trained.

Standalone engines work while a step trains: they finish the rows of the next step, with the weights
that the current step started from, and start those of later steps. Colocated engines alternate with
training: they finish the rows of a step and advance those of later steps meanwhile. So the rollout
weights are some versions older than the trained ones (staleness); timing has no influence. Without
lookahead the rows of a step are generated when it begins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.engines import StandaloneEngines
from ppojob_trainer.controller.rollout_stages import Draw, RolloutStages, Rows, StepBatches
from ppojob_trainer.controller.row_tape import AHEAD_FOLDER
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import Place, PromptOrder
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import JobFailed
from ppojob_trainer.metrics.step_metrics import staleness_metrics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rpc.messages.saving import FileEntry


@dataclass(frozen=True)
class InterleavedSource:
    """Batch source of colocated engines, and of any engines without lookahead.

    Partial rows continue in the next step; the ranks save them as their state.
    """

    stages: RolloutStages
    algorithm: AlgorithmSpec
    steps: int  # lookahead in steps, and maximum staleness of a token in versions; 0 for none
    total_steps: int  # maximum number of steps
    passes: int | None  # epochs after which the run ends; None if steps are counted
    dataset: PromptDataset
    order: PromptOrder  # order of the prompts; the current step's are already drawn from it

    @property
    def size(self) -> int:
        return self.algorithm.draw[1]

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate the rows of a step; raises as `staleness`."""
        with timer("data"):
            batches = self._batches(draw(self.size), step)
            following = self.batches_from(step + 1, self.order.place)
        self.generate(batches, following, timer)
        return Rows(*batches, metrics=self.staleness(batches[0]))

    def generate(
        self, batches: StepBatches, following: Sequence[StepBatches], timer: StepTimer
    ) -> None:
        """Generate rows completely, and the following ones as far as they get.

        Rows on disk are generated again, as in `PrefetchedSource.begin`.
        """
        batch, greedy = batches
        if following and self.stages.tape.is_replayed(batch):
            with timer("gen"):
                self.stages.run_engines(batch, greedy, following)
        self.stages.generate(batch, greedy, timer, ahead=following)

    def batches_from(self, step: int, place: Place) -> list[StepBatches]:
        """Return the batches of a step whose prompts begin at `place`, and of later steps."""
        steps = min(self.steps, self.total_steps - step + 1)
        if self.passes is not None and self.order.passes_read(place, self.size) >= self.passes:
            return []
        batches = self.order.batches_behind(place, self.size, steps)
        return [self._batches(self.dataset.rows(rows), n) for n, rows in enumerate(batches, step)]

    def next_rounds(self, step: int, most: int) -> list[StepBatches]:
        """Return the next rounds of dynamic sampling, at most `most`, while a step has its own.

        They are numbered over the run, since it is not known yet which step uses them.
        """
        place, first = self.order.place, self.rounds_begun + 1
        batches = self.order.batches_behind(place, self.size, min(self.steps, most))
        rounds = [self.dataset.rows(rows) for rows in batches]
        made = (self._batches(prompts, n)[0] for n, prompts in enumerate(rounds, step + 1))
        return [(replace(batch, number=number), None) for number, batch in enumerate(made, first)]

    def _batches(self, prompts: list[PromptRow], step: int) -> StepBatches:
        """Return the batches to generate for the prompts of a step."""
        algorithm, owners = self.algorithm, len(self.stages.roles.owner.ranks)
        batch = Batch("train", step, prompts, algorithm.samples_per_prompt, owners)
        has_greedy = algorithm.estimator.has_greedy
        return batch, Batch("greedy", step, prompts, 1, owners) if has_greedy else None

    @property
    def rounds_begun(self) -> int:
        """Return the number of rounds begun in the run; 0 without lookahead."""
        return self.order.batches_read(self.order.place, self.size) if self.steps else 0

    def staleness(self, batch: Batch) -> dict[str, float]:
        """Return the staleness metrics of a step, none without lookahead.

        JobFailed if a token is staler than allowed.
        """
        if not self.steps:
            return {}
        given = batch.given_rows
        rows = enumerate(batch.metadata)
        drawn = [row.versions for number, row in rows if number not in given]
        metrics = staleness_metrics(drawn, batch.step - 1)
        if (oldest := metrics["async/staleness_max"]) > self.steps:
            raise JobFailed(
                f"step {batch.step}: got tokens drawn by weights {oldest:g} versions older: "
                f"spec.rollout.maxStaleness allows {self.steps}"
            )
        return metrics


@dataclass(frozen=True)
class PrefetchedSource(InterleavedSource):
    """Batch source that prefetches rows with standalone engines, in one phase per step.

    A phase ends when the rows of the next step are finished; rows of later steps are then partial.
    The engines load the newest weights between phases. All of it depends on weights, prompt order
    and seed only, since the end of a phase depends on the generated tokens.

    The first step of a run, or after a checkpoint without prefetched rows, generates on demand. The
    last step prefetches nothing.
    """

    engines: StandaloneEngines

    def generate(
        self, batches: StepBatches, following: Sequence[StepBatches], timer: StepTimer
    ) -> None:
        """Wait for a step's rows and start the phase of the next step."""
        self.wait(batches, following[: self.steps - 1], timer)
        if following:
            self.begin(batches[0].step - 1, following, timer)

    def wait(self, batches: StepBatches, beside: Sequence[StepBatches], timer: StepTimer) -> None:
        """Wait for the rows of a step; `beside` are later steps generated in the same phase."""
        (batch, greedy), tape = batches, self.stages.tape
        is_first = batch.step == tape.began + 1
        # The step's rows may be on disk, but not the partial rows of its phase.
        is_recorded = tape.is_replayed(batch) and not tape.is_prefetched(batch)
        if is_first and self.steps > 1 and is_recorded:
            self.begin(batch.step - 1, [batches, *beside], timer)
        self.stages.generate(batch, greedy, timer, ahead=beside, is_begun=not is_first)

    def begin(self, version: int, batches: Sequence[StepBatches], timer: StepTimer) -> None:
        """Start the phase of a step, with the weights of a version.

        Rows on disk are generated again if later steps are generated with them: the partial rows of
        these depend on the whole batch.
        """
        batch, greedy = batches[0]
        if self.steps == 1 and self.stages.tape.is_replayed(batch):
            return
        with timer("update_weights"):
            self.engines.prepare(version)
        with timer("gen"):
            self.engines.begin(*self.stages.generate_requests(batch, greedy, batches[1:]))

    def save(self, progress: Progress, folder: str, act: str) -> list[FileEntry]:
        """Write the finished rows of the next step into a checkpoint; return the files.

        `folder` is relative to the run folder; `act` names the attempt. The engines save partial
        rows of later steps as their state. Raises as `Checkpoints.save`.
        """
        stages, step = self.stages, progress.step + 1
        following = self.batches_from(step, progress.data.place)
        if not following:
            return []
        batch, greedy = following[0]
        is_begun = step > stages.tape.began + 1
        stages.generate(batch, greedy, ahead=following[1:], is_begun=is_begun)
        files = []
        for rows in [batch] if greedy is None else [batch, greedy]:
            path, count = f"{AHEAD_FOLDER}/{rows.purpose}", rows.num_rows
            unscored = replace(rows, scores=[math.nan] * count, extras=[b"{}"] * count)
            files += [
                msgspec.structs.replace(file, path=f"{path}/{file.path}", role="rollout")
                for file in stages.write_rows(unscored, f"{folder}/{path}", act)
            ]
        return files
