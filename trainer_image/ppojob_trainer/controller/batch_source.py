"""Where the rows of a step come from: one round of generation, now or ahead; dynamic sampling.

Steps ahead: while a step trains, engines in pods of their own draw the rows of the next one, with
the weights that this step begins with, and begin with those of the steps behind it. So rows are
drawn by weights some versions older than those that train on them, whatever takes how long.

Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): prompts whose responses all score the same
have no advantage, so they teach nothing and give way to further prompts. Prompts are drawn,
answered and scored in rounds until the batch is full of groups whose scores differ. A round is a
batch like any other: it is kept before the next one begins, and a step that is begun again makes
the same rounds.

When the rounds are used up, groups without signal fill the batch, those drawn first: the step then
is the one that a job without dynamic sampling does. verl ends the job there.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TypeAlias

import msgspec

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, DynamicSamplingSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.checkpoint.files import FileEntry
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.batch import Batch, Origin, dropped_rows
from ppojob_trainer.controller.engines import StandaloneEngines
from ppojob_trainer.controller.rollout_stages import Drawn, RolloutStages
from ppojob_trainer.controller.row_tape import AHEAD_FOLDER
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import OrderState, PromptOrder
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import JobFailed
from ppojob_trainer.metrics.step_metrics import staleness_metrics
from ppojob_trainer.metrics.timer import StepTimer

_log = logging.getLogger(__name__)

METRIC = "spec.algorithm.dynamicSampling.metric"
Draw = Callable[[int], list[PromptRow]]
"""Draws so many further prompts of the job, in their order."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step trains on.

    Attributes:
        greedy: greedy responses to the prompts of the batch, where somebody reads those.
        is_kept: whether they are scored, and on the disk, already.
        metrics: how they were sampled, by name of the metric.
    """

    batch: Batch
    greedy: Batch | None = None
    is_kept: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OneRound:
    """Draws as many prompts as a step has, and generates; the step does the scoring."""

    stages: RolloutStages
    algorithm: AlgorithmSpec

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Make the rows of a step; the same for a step that is begun again."""
        with timer("data"):
            prompts = draw(self.algorithm.prompts_per_step)
        batch, greedy = self.batches(prompts)
        self.stages.generate(batch, step, greedy, timer)
        return Rows(batch, greedy)

    def batches(self, prompts: list[PromptRow]) -> Drawn:
        """What is drawn for the prompts of a step."""
        owners = len(self.stages.actor.ranks)
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt, owners)
        has_greedy = self.algorithm.estimator.has_greedy
        return batch, Batch("greedy", prompts, 1, owners) if has_greedy else None


@dataclass(frozen=True)
class DrawnAhead:
    """What engines in pods of their own draw of later steps while one trains.

    They draw in phases, one a step: the rows of the next step to their end, and those of the steps
    behind it as far as they come. Between two phases they take the newest weights. All of it is a
    function of weights, order of prompts and seed, since phases end by what was drawn.

    The first step of a run has its rows drawn at once, and so has one behind a checkpoint without
    rows: that of a run which ended there. The last step has none drawn.

    Attributes:
        size: prompts that are drawn of each step.
        steps: whose rows may be under way behind the one that trains; by so many versions the
            weights that draw a token are older than those that train on it, at most.
        total_steps: how many there are, at most.
        passes: over the data, behind which the run ends; None where steps are counted.
        order: of the prompts, from which those of a step are drawn once it begins.
    """

    one_round: OneRound
    engines: StandaloneEngines
    size: int
    steps: int
    total_steps: int
    passes: int | None
    dataset: PromptDataset
    order: PromptOrder

    def following(self, step: int, state: OrderState) -> list[Drawn]:
        """What is drawn for a step that begins at a place in the order of prompts, and behind."""
        steps = min(self.steps, self.total_steps - step + 1)
        if self.passes is not None and self.order.passes_read(state, self.size) >= self.passes:
            return []
        batches = self.order.batches_behind(state, self.size, steps)
        return [self.one_round.batches(self.dataset.rows(rows)) for rows in batches]

    def wait(self, step: int, drawn: Drawn, beside: Sequence[Drawn], timer: StepTimer) -> None:
        """Wait for the rows of a step; `beside` are those behind it that are drawn with them."""
        stages, (batch, greedy) = self.one_round.stages, drawn
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
        stages, (batch, greedy) = self.one_round.stages, drawn[0]
        if self.steps == 1 and stages.tape.is_replayed(batch, step):
            return
        with timer("update_weights"):
            self.engines.prepare(version)
        with timer("gen"):
            self.engines.begin(*stages.generation(batch, step, greedy, drawn[1:]))

    def staleness(self, batch: Batch, step: int) -> dict[str, float]:
        """By how much the weights that drew the rows of a step are older.

        Raises:
            JobFailed: a token is of older weights than the job allows.
        """
        metrics = staleness_metrics(batch.versions, step - 1)
        if (oldest := metrics["async/staleness_max"]) > self.steps:
            raise JobFailed(
                f"step {step}: got tokens drawn by weights {oldest:g} versions older: "
                f"spec.rollout.maxStaleness allows {self.steps}"
            )
        return metrics

    def save(self, progress: Progress, folder: str, act: str) -> list[FileEntry]:
        """Write the rows of the step behind a state into its checkpoint, once they are drawn.

        The folder is that of the checkpoint, relative to the run folder; `act` is the name of the
        attempt to make it. What is under way of later steps, engines write as their state.

        Raises:
            RoleLost, StorageError: as whatever else is written.
        """
        stages, step = self.one_round.stages, progress.step + 1
        state: OrderState = {"epoch": progress.data.epoch, "cursor": progress.data.cursor}
        following = self.following(step, state)
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
        tape = self.one_round.stages.tape
        return self.steps > 1 and tape.is_replayed(batch, step) and not tape.is_ahead(batch, step)


@dataclass(frozen=True)
class StepsAhead:
    """Has rows of the steps behind it drawn while a step trains."""

    one_round: OneRound
    ahead: DrawnAhead

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Wait for the rows of a step, and have those of the next one begun.

        Raises:
            JobFailed: a token is of older weights than the job allows.
        """
        ahead = self.ahead
        with timer("data"):
            drawn = self.one_round.batches(draw(ahead.size))
            following = ahead.following(step + 1, ahead.order.state_dict())
        ahead.wait(step, drawn, following[: ahead.steps - 1], timer)
        if following:
            ahead.begin(step + 1, step - 1, following, timer)
        return Rows(*drawn, metrics=ahead.staleness(drawn[0], step))


@dataclass(frozen=True)
class DynamicSampling:
    """Makes the rows of a step in rounds.

    Which prompts come next is known behind a step's last round. So the first round of the next step
    may be drawn while this one trains; further ones are drawn when they are needed, with the
    weights that the step begins with.

    Attributes:
        drops: whether responses at which a reward function failed are not trained on.
        ahead: has first rounds drawn ahead; None where none is.
    """

    stages: RolloutStages
    algorithm: AlgorithmSpec
    settings: DynamicSamplingSpec
    drops: bool
    ahead: DrawnAhead | None = None

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate, score and keep rounds until the batch is full, or they are used up."""
        rounds: list[Batch] = []
        signals: list[list[bool]] = []
        lost, size = set[tuple[int, int]](), self.algorithm.prompts_per_step
        while len(rounds) < self.settings.max_rounds:
            number = len(rounds)
            batch, dropped = self._round(number, step, draw, timer)
            rounds.append(batch)
            numbers = batch.numbers(self.settings.metric, step, METRIC)
            cut = batch.truncated if self.settings.whole_responses else ()
            means = self.settings.means
            signals.append(has_signal(numbers, batch.samples, dropped, means, cut))
            lost |= {(number, position) for position in _lost(batch, dropped)}
            if sum(map(sum, signals)) >= size:
                break
        found = sum(map(sum, signals))
        if found < size:
            _log.warning(
                "step %d: after %d rounds %d of %d prompts have responses that differ in %s; "
                "others fill the batch",
                *(step, len(rounds), found, size, self.settings.metric),
            )
        chosen = chosen_batch(rounds, choose(signals, size, lost))
        metrics = sampling_metrics(signals, size)
        if self.ahead is not None:
            following = self.ahead.following(step + 1, self.ahead.order.state_dict())
            if following:
                self.ahead.begin(step + 1, step - 1, following, timer)
            metrics |= self.ahead.staleness(chosen, step)
        return Rows(chosen, is_kept=True, metrics=metrics)

    def _round(
        self, number: int, step: int, draw: Draw, timer: StepTimer
    ) -> tuple[Batch, list[int]]:
        """A round that is kept, and its rows that are not trained on."""
        assert self.settings.prompts_per_round is not None, "a resolved configuration says it"
        with timer("data"):
            prompts = draw(self.settings.prompts_per_round)
        owners = len(self.stages.actor.ranks)
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt, owners, round=number)
        if self.ahead is None or number:
            self.stages.generate(batch, step, timer=timer)
        else:
            self.ahead.wait(step, (batch, None), (), timer)
        with timer("reward"):
            self.stages.score(batch, step)
        dropped = dropped_rows(batch, None, step) if self.drops else []
        with timer("write_rows"):
            self.stages.keep(batch, step)
        return batch, dropped


BatchSource: TypeAlias = OneRound | StepsAhead | DynamicSampling


def batch_source(
    spec: PPOJobSpec,
    stages: RolloutStages,
    total_steps: int,
    dataset: PromptDataset,
    order: PromptOrder,
) -> BatchSource:
    """The source that a job asks for; where rows are replayed no engine draws any ahead."""
    algorithm, sampling = spec.algorithm, spec.algorithm.dynamic_sampling
    one_round, ahead = OneRound(stages, algorithm), None
    if spec.rollout.max_staleness and isinstance(stages.engines, StandaloneEngines):
        ahead = DrawnAhead(
            one_round,
            stages.engines,
            size=algorithm.draw[1],
            steps=spec.rollout.max_staleness,
            total_steps=total_steps,
            passes=spec.steps.epochs,
            dataset=dataset,
            order=order,
        )
    if sampling is not None:
        return DynamicSampling(stages, algorithm, sampling, spec.drops_responses, ahead)
    return one_round if ahead is None else StepsAhead(one_round, ahead)


def has_signal(
    numbers: list[float],
    samples: int,
    dropped: Sequence[int] = (),
    means: tuple[float, float] = (-math.inf, math.inf),
    cut: Sequence[bool] = (),
) -> list[bool]:
    """(prompts,) whether the responses of each prompt have different numbers, their mean in bounds.

    `numbers` are those of all rows, `samples` a prompt; `dropped` rows do not count. A mean lies
    between the two `means`, on neither of them. No row of a prompt is `cut`, (rows,) where that
    counts.
    """
    left, (low, high) = set(range(len(numbers))) - set(dropped), means
    firsts = range(0, len(numbers), samples)
    groups = [
        [numbers[row] for row in range(first, first + samples) if row in left] for first in firsts
    ]
    is_whole = [not any(cut[first : first + samples]) for first in firsts]
    return [
        whole and len(set(group)) > 1 and low < fmean(group) < high
        for whole, group in zip(is_whole, groups, strict=True)
    ]


def _lost(batch: Batch, dropped: Sequence[int]) -> list[int]:
    """Positions of the prompts that have no response to train on."""
    counts = Counter(row // batch.samples for row in dropped)
    return [position for position, count in counts.items() if count == batch.samples]


def choose(
    signals: list[list[bool]], size: int, lost: Collection[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """The prompts of a batch: the first with signal, then the first of the others.

    Args:
        signals: (rounds, prompts of a round) whether responses differ.
        size: prompts of the batch.
        lost: places without a response to train on, which come last.

    Returns:
        Round and position of each, in the order in which they were drawn.
    """
    drawn = [
        (round_, position)
        for round_, of_round in enumerate(signals)
        for position in range(len(of_round))
    ]
    # A stable sort: those with signal first, each kind as it was drawn.
    by_signal = sorted(drawn, key=lambda at: (not signals[at[0]][at[1]], at in lost))
    return sorted(by_signal[:size])


def chosen_batch(rounds: list[Batch], places: list[tuple[int, int]]) -> Batch:
    """The batch of some prompts of rounds, whose rows stay on the ranks that made them."""
    samples = rounds[0].samples
    owners = [batch.prompt_owners for batch in rounds]
    rows = [
        (rounds[round_], position * samples + sample)
        for round_, position in places
        for sample in range(samples)
    ]
    return Batch(
        purpose="train",
        prompts=[rounds[round_].prompts[position] for round_, position in places],
        samples=samples,
        owners=rounds[0].owners,
        lengths=[batch.lengths[row] for batch, row in rows],
        truncated=[batch.truncated[row] for batch, row in rows],
        versions=[batch.versions[row] for batch, row in rows if batch.versions],
        later_picture_bytes=[
            batch.later_picture_bytes[row] for batch, row in rows if batch.later_picture_bytes
        ],
        scores=[batch.scores[row] for batch, row in rows],
        extras=[batch.extras[row] for batch, row in rows],
        figures=[batch.figures[row] for batch, row in rows if batch.figures],
        tool_seconds=[batch.tool_seconds[row] for batch, row in rows if batch.tool_seconds],
        origins=[Origin(r, position, owners[r][position]) for r, position in places],
    )


def sampling_metrics(signals: list[list[bool]], size: int) -> dict[str, float]:
    """How a batch came about; the names are verl's, which counts prompts under them as well."""
    drawn = sum(map(len, signals))
    found = sum(map(sum, signals))
    filling = max(0, size - found)
    return {
        "train/num_gen_batches": float(len(signals)),
        "training/filter_groups/evicted_samples": float(drawn - found - filling),
        "training/filter_groups/discarded_surplus_samples": float(max(0, found - size)),
        "training/filter_groups/wasted_share": (drawn - size) / drawn,
    }
