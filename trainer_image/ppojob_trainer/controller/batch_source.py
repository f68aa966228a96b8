"""Batch sources: one generation round per step, lookahead over several steps, or dynamic sampling.

Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): prompts whose responses all score the same
have no advantage, so they are replaced by further prompts. Prompts are drawn, generated and scored
in rounds until the batch is full of groups whose scores differ. Each round is recorded like any
batch before the next one begins, and a repeated step makes the same rounds.

After the last allowed round, groups without signal fill the batch, earliest first: the step then
equals that of a job without dynamic sampling. verl ends the job there.
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, DynamicSamplingSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.controller.batch import Batch, Origin
from ppojob_trainer.controller.engines import StandaloneEngines
from ppojob_trainer.controller.lookahead import (
    InterleavedSource,
    Lookahead,
    PrefetchedSource,
    Prefetcher,
)
from ppojob_trainer.controller.rollout_round import Draw, RolloutRound, Rows
from ppojob_trainer.controller.rollout_stages import RolloutStages
from ppojob_trainer.controller.row_filters import dropped_rows, filtered_rows
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import PromptOrder
from ppojob_trainer.metrics.timer import StepTimer

_log = logging.getLogger(__name__)

METRIC = "spec.algorithm.dynamicSampling.metric"


@dataclass(frozen=True)
class DynamicSampling:
    """Generates the rows of a step in rounds (dynamic sampling).

    Which prompts come next is known only after a step's last round. So the first round of the next
    step may be prefetched while this one trains. Further rounds are generated on demand, with the
    weights that the step begins with.

    Engines that alternate with training generate further rounds beside the current one: those next
    in prompt order, whichever step uses them.

    Attributes:
        drops: whether responses whose reward function failed are excluded from training.
        ahead: prefetches first rounds; None without prefetch.
        beside: generates later rounds beside the current one; None without that.
    """

    stages: RolloutStages
    algorithm: AlgorithmSpec
    settings: DynamicSamplingSpec
    drops: bool
    ahead: Prefetcher | None = None
    beside: InterleavedSource | None = None

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate, score and record rounds until the batch is full, or no round is left."""
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
            later = self.ahead.later
            following = later.batches_from(step + 1, later.order.place)
            if following:
                self.ahead.begin(step + 1, step - 1, following, timer)
        if (drawing := self.ahead or self.beside) is not None:
            metrics |= drawing.later.staleness(chosen, step)
        return Rows(chosen, is_recorded=True, metrics=metrics, rounds=rounds)

    def _round(
        self, number: int, step: int, draw: Draw, timer: StepTimer
    ) -> tuple[Batch, list[int]]:
        """Return a recorded round, and its rows that are excluded from training."""
        assert self.settings.prompts_per_round is not None, "a resolved configuration says it"
        with timer("data"):
            prompts = draw(self.settings.prompts_per_round)
        owners = len(self.stages.actor.ranks)
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt, owners, round=number)
        if self.beside is not None:
            later = self.beside.later
            batch.number = later.rounds_begun
            following = later.next_rounds(self._rounds_left(later.total_steps, step, number))
            self.beside.generate(step, (batch, None), following, timer)
        elif self.ahead is None or number:
            self.stages.generate(batch, step, timer=timer)
        else:
            self.ahead.wait(step, (batch, None), (), timer)
        with timer("reward"):
            self.stages.score(batch, step)
        dropped = dropped_rows(batch, None, step) if self.drops else []
        dropped += filtered_rows(batch, self.algorithm.group_filter, dropped, step)
        with timer("write_rows"):
            self.stages.record(batch, step)
        return batch, dropped

    def _rounds_left(self, total_steps: int, step: int, number: int) -> int:
        """Return how many rounds the run has after one of a step, at most."""
        return (total_steps - step + 1) * self.settings.max_rounds - number - 1


BatchSource: TypeAlias = RolloutRound | PrefetchedSource | InterleavedSource | DynamicSampling


def batch_source(
    spec: PPOJobSpec,
    stages: RolloutStages,
    total_steps: int,
    dataset: PromptDataset,
    order: PromptOrder,
) -> BatchSource:
    """Select the batch source of a job; a replayed job prefetches nothing."""
    algorithm, sampling = spec.algorithm, spec.algorithm.dynamic_sampling
    rollout_round = RolloutRound(stages, algorithm)
    later = Lookahead(
        rollout_round,
        size=algorithm.draw[1],
        steps=spec.rollout.max_staleness,
        total_steps=total_steps,
        passes=spec.steps.epochs,
        dataset=dataset,
        order=order,
    )
    draws_later = later.steps > 0 and spec.rollout.replay is None
    ahead, beside = None, None
    if draws_later and isinstance(stages.engines, StandaloneEngines):
        ahead = Prefetcher(later, stages.engines)
    elif draws_later:
        beside = InterleavedSource(later)
    if sampling is not None:
        return DynamicSampling(stages, algorithm, sampling, spec.drops_responses, ahead, beside)
    if ahead is not None:
        return PrefetchedSource(ahead)
    return beside or rollout_round


def has_signal(
    numbers: list[float],
    samples: int,
    dropped: Sequence[int] = (),
    means: tuple[float, float] = (-math.inf, math.inf),
    cut: Sequence[bool] = (),
) -> list[bool]:
    """Return (prompts,) whether a prompt's responses differ in score, with their mean in bounds.

    `numbers` are those of all rows, `samples` per prompt; `dropped` rows do not count. A mean must
    lie strictly between the two `means`. No other row of a prompt may be `cut` (truncated), (rows,)
    where that counts.
    """
    left, (low, high) = set(range(len(numbers))) - set(dropped), means
    groups = [
        [row for row in range(first, first + samples) if row in left]
        for first in range(0, len(numbers), samples)
    ]
    return [
        len({numbers[row] for row in group}) > 1
        and low < fmean(numbers[row] for row in group) < high
        and not (cut and any(cut[row] for row in group))
        for group in groups
    ]


def _lost(batch: Batch, dropped: Sequence[int]) -> list[int]:
    """Return the positions of prompts that have no response to train on."""
    counts = Counter(row // batch.samples for row in dropped)
    return [position for position, count in counts.items() if count == batch.samples]


def choose(
    signals: list[list[bool]], size: int, lost: Collection[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Select the prompts of a batch: first those with signal, then the others, earliest first.

    Args:
        signals: (rounds, prompts per round) whether responses differ.
        size: prompts of the batch.
        lost: places without a response to train on, which come last.

    Returns:
        Round and position of each prompt, in the order of generation.
    """
    drawn = [
        (round_, position)
        for round_, of_round in enumerate(signals)
        for position in range(len(of_round))
    ]
    # A stable sort: those with signal first, each kind in the order of generation.
    by_signal = sorted(drawn, key=lambda at: (not signals[at[0]][at[1]], at in lost))
    return sorted(by_signal[:size])


def chosen_batch(rounds: list[Batch], places: list[tuple[int, int]]) -> Batch:
    """Build the batch of selected prompts of several rounds; rows stay on their owners."""
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
        counts=sum((batch.counts for batch in rounds), Counter()),
        origins=[Origin(r, position, owners[r][position]) for r, position in places],
    )


def sampling_metrics(signals: list[list[bool]], size: int) -> dict[str, float]:
    """Return the metrics of dynamic sampling, under verl's names, which also count prompts."""
    drawn = sum(map(len, signals))
    found = sum(map(sum, signals))
    filling = max(0, size - found)
    return {
        "train/num_gen_batches": float(len(signals)),
        "training/filter_groups/evicted_samples": float(drawn - found - filling),
        "training/filter_groups/discarded_surplus_samples": float(max(0, found - size)),
        "training/filter_groups/wasted_share": (drawn - size) / drawn,
    }
