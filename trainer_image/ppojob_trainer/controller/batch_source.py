"""Batch sources of a job, and dynamic sampling.

Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): prompts whose responses all score the same
have no advantage, so they are replaced. Prompts are drawn, generated and scored in rounds until the
batch is full of groups whose scores differ. Each round is recorded before the next one, so a
repeated step has the same rounds.

After the last allowed round, groups without signal fill the batch, earliest first, where verl ends
the job.
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from ppojob_api.v1alpha1.algorithm import DynamicSamplingSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.controller.batch import Batch, Origin
from ppojob_trainer.controller.engines import StandaloneEngines
from ppojob_trainer.controller.lookahead import InterleavedSource, PrefetchedSource
from ppojob_trainer.controller.rollout_stages import Draw, RolloutStages, Rows
from ppojob_trainer.controller.row_filters import dropped_rows, filtered_rows
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import PromptOrder
from ppojob_trainer.metrics.timer import StepTimer

_log = logging.getLogger(__name__)

METRIC = "spec.algorithm.dynamicSampling.metric"


@dataclass(frozen=True)
class DynamicSampling:
    """Batch source that generates the rows of a step in rounds.

    With prefetch, the first round of the next step is generated while this step trains, since its
    prompts are known after the last round. Other rounds are generated on demand. Colocated engines
    with lookahead generate the next rounds, of whichever step, together with the current one.
    """

    # prefetches first rounds, or generates later rounds with the current one
    source: InterleavedSource
    settings: DynamicSamplingSpec
    drops: bool  # whether responses whose reward function failed are excluded from training

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate, score and record rounds until the batch is full or no round is left."""
        rounds: list[Batch] = []
        signals: list[list[bool]] = []
        source, lost = self.source, set[tuple[int, int]]()
        size = source.algorithm.prompts_per_step
        while len(rounds) < self.settings.max_rounds:
            number = len(rounds)
            batch, dropped = self._round(number, step, draw, timer)
            rounds.append(batch)
            numbers = batch.numbers(self.settings.metric, METRIC)
            cut = batch.truncated if self.settings.whole_responses else ()
            means = self.settings.means
            signals.append(has_signal(numbers, batch.samples, dropped, means, cut))
            counts = Counter(row // batch.samples for row in dropped)
            lost |= {(number, place) for place, n in counts.items() if n == batch.samples}
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
        if isinstance(source, PrefetchedSource):
            following = source.batches_from(step + 1, source.order.place)
            if following:
                source.begin(step - 1, following, timer)
        metrics = sampling_metrics(signals, size) | source.staleness(chosen)
        return Rows(chosen, is_recorded=True, metrics=metrics, rounds=rounds)

    def _round(
        self, number: int, step: int, draw: Draw, timer: StepTimer
    ) -> tuple[Batch, list[int]]:
        """Generate, score and record a round; return it and its rows excluded from training."""
        source, stages, algorithm = self.source, self.source.stages, self.source.algorithm
        with timer("data"):
            prompts = draw(source.size)
        owners = len(stages.roles.owner.ranks)
        batch = Batch("train", step, prompts, algorithm.samples_per_prompt, owners, number)
        if not isinstance(source, PrefetchedSource):
            batch.number = source.rounds_begun
            steps_left = source.total_steps - step + 1
            rounds_left = steps_left * self.settings.max_rounds - number - 1
            source.generate((batch, None), source.next_rounds(step, rounds_left), timer)
        elif number:
            stages.generate(batch, timer=timer)
        else:
            source.wait((batch, None), (), timer)
        with timer("reward"):
            stages.score(batch)
        dropped = dropped_rows(batch, None) if self.drops else []
        dropped += filtered_rows(batch, algorithm.group_filter, dropped)
        with timer("write_rows"):
            stages.record(batch)
        return batch, dropped


BatchSource: TypeAlias = InterleavedSource | DynamicSampling


def batch_source(
    spec: PPOJobSpec,
    stages: RolloutStages,
    total_steps: int,
    dataset: PromptDataset,
    order: PromptOrder,
) -> BatchSource:
    """Select the batch source of a job; a replayed job prefetches nothing."""
    sampling, steps = spec.algorithm.dynamic_sampling, spec.rollout.max_staleness
    if spec.rollout.replay is not None:
        steps = 0
    passes, engines = spec.steps.epochs, stages.engines
    of_run = stages, spec.algorithm, steps, total_steps, passes, dataset, order
    source = (
        PrefetchedSource(*of_run, engines)
        if steps and isinstance(engines, StandaloneEngines)
        else InterleavedSource(*of_run)
    )
    return source if sampling is None else DynamicSampling(source, sampling, spec.drops_responses)


def has_signal(
    numbers: list[float],
    samples: int,
    dropped: Sequence[int] = (),
    means: tuple[float, float] = (-math.inf, math.inf),
    cut: Sequence[bool] = (),
) -> list[bool]:
    """Return (prompts,) whether the scores of a prompt's responses differ.

    Args:
        numbers: (rows,) scores.
        samples: rows per prompt.
        dropped: rows that do not count.
        means: bounds of the mean, both excluded.
        cut: (rows,) whether a response is truncated, if no row of a prompt may be.
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


def choose(
    signals: list[list[bool]], size: int, lost: Collection[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Select `size` prompts: those with signal, then others, each earliest first.

    `signals` are (rounds, prompts per round); `lost` places, whose responses are all dropped, come
    last. Returns round and position of each prompt, in the order of generation.
    """
    drawn = [
        (round_, position)
        for round_, of_round in enumerate(signals)
        for position in range(len(of_round))
    ]
    by_signal = sorted(drawn, key=lambda at: (not signals[at[0]][at[1]], at in lost))
    return sorted(by_signal[:size])


def chosen_batch(rounds: list[Batch], places: list[tuple[int, int]]) -> Batch:
    """Return the batch of selected prompts of several rounds; rows stay on their owners."""
    samples = rounds[0].samples
    owners = [batch.prompt_owners for batch in rounds]
    rows = [
        (rounds[round_], position * samples + sample)
        for round_, position in places
        for sample in range(samples)
    ]
    return Batch(
        purpose="train",
        step=rounds[0].step,
        prompts=[rounds[round_].prompts[position] for round_, position in places],
        samples=samples,
        owners=rounds[0].owners,
        metadata=[batch.metadata[row] for batch, row in rows],
        scores=[batch.scores[row] for batch, row in rows],
        extras=[batch.extras[row] for batch, row in rows],
        counts=sum((batch.counts for batch in rounds), Counter()),
        origins=[Origin(r, position, owners[r][position]) for r, position in places],
    )


def sampling_metrics(signals: list[list[bool]], size: int) -> dict[str, float]:
    """Return the metrics of dynamic sampling under verl's names; they count prompts."""
    drawn = sum(map(len, signals))
    found = sum(map(sum, signals))
    filling = max(0, size - found)
    return {
        "train/num_gen_batches": float(len(signals)),
        "training/filter_groups/evicted_samples": float(drawn - found - filling),
        "training/filter_groups/discarded_surplus_samples": float(max(0, found - size)),
        "training/filter_groups/wasted_share": (drawn - size) / drawn,
    }
