"""Records of a run: metrics and rows of each step, truncated on a rewind."""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ppojob_api.run_layout import METRICS_FILE, RESPONSES_FILE
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer import durable
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.batch import Batch, values_of_failure
from ppojob_trainer.controller.row_tape import BatchKey, batches_on_disk
from ppojob_trainer.controller.training_step import StepResult
from ppojob_trainer.errors import StorageError
from ppojob_trainer.metrics.sinks import Sinks
from ppojob_trainer.metrics.step_metrics import (
    RowFigures,
    StepRows,
    balance_metrics,
    length_metrics,
    row_metrics,
)
from ppojob_trainer.metrics.validation import ValidationRow, validation_metrics
from ppojob_trainer.rows.row_files import read_responses, write_advantages, write_responses

_log = logging.getLogger(__name__)

ADVANTAGES_FOLDER = "advantages"
ROWS_CUT_POINT = durable.point("rows.cut", *durable.REMOVE_ACTS)


@dataclass(frozen=True)
class Records:
    """The metrics and row files of a run."""

    sinks: Sinks
    run_folder: Path

    def cut_metrics(self, progress: Progress) -> None:
        """Remove metrics after a state; the repeated steps write them again."""
        self.sinks.cut_after(_last_record(progress))

    def history(self) -> Iterator[dict[str, float | None]]:
        """Return the metrics of all steps so far, in order."""
        decoder = msgspec.json.Decoder(dict[str, float | None])
        return map(decoder.decode, durable.read_lines(self.run_folder / METRICS_FILE))

    def keep_advantages(self, result: StepResult) -> None:
        """Write rewards (with penalties) and advantages of a step's rows.

        Errors of the disk are only logged, since nothing resumes from this file.
        """
        batch, advantaged = result.batch, result.advantaged
        if advantaged is None:
            return
        rows = []
        for row, score in enumerate(batch.scores):
            position, sample = divmod(row, batch.samples)
            origin = None if batch.origins is None else batch.origins[position]
            rows.append(
                {
                    "step": batch.step,
                    "round": 0 if origin is None else origin.round,
                    "row": (origin.position if origin else position) * batch.samples + sample,
                    "prompt_id": batch.prompts[position].index,
                    "sample": sample,
                    "score": score,
                    "reward": advantaged.row_rewards[row],
                    "advantage": advantaged.row_advantages[row],
                }
            )
        path = self.run_folder / ADVANTAGES_FOLDER / f"step-{batch.step:06d}.parquet"
        try:
            write_advantages(path, rows)
        except StorageError as problem:
            _log.warning("no advantages of step %d on the disk: %s", batch.step, problem)

    def keep_responses(self, batch: Batch, parts: Iterable[Path]) -> None:
        """Write the prompts of a batch with their responses, which are read from `parts`."""
        write_responses(self.run_folder / RESPONSES_FILE, batch.prompts, read_responses(parts))

    def cut_rows(self, progress: Progress, replayed: Collection[BatchKey]) -> None:
        """Remove the rows of steps after a state, except those of `replayed` batches.

        Call it in a rewind only: otherwise a rank that has written a part would answer a repeated
        request from memory, without writing it again.
        """
        last = _last_record(progress)
        for key in batches_on_disk(self.run_folder):
            if last < key.step and key not in replayed:
                durable.remove_tree(self.run_folder / key.folder, ROWS_CUT_POINT)


def _last_record(progress: Progress) -> int:
    """Return the last step with a record: 0 for the first validation, -1 for none."""
    has_records = progress.step > 0 or progress.metrics_lines > 0
    return progress.step if has_records else -1


def step_rows(result: StepResult) -> StepRows:
    """Return the step's rows as input of the metrics."""
    batch, extras = result.batch, result.batch.values()
    for row in result.dropped:
        extras[row] = values_of_failure(extras[row])
    return StepRows(
        scores=batch.scores,
        rewards=[] if result.advantaged is None else result.advantaged.row_rewards,
        prompt_tokens=[len(batch.prompt_of(row).token_ids) for row in range(batch.num_rows)],
        response_tokens=batch.lengths,
        truncated=batch.truncated,
        extras=extras,
        figures=[msgspec.json.decode(own, type=RowFigures) for own in batch.figures],
        tool_seconds=[s for row in batch.metadata if (s := row.tool_seconds) is not None],
        counts=batch.counts,
        dropped=result.dropped,
        filtered=result.filtered,
    )


def training_metrics(
    result: StepResult, rows: StepRows, spec: PPOJobSpec, epoch: int
) -> dict[str, float]:
    """Return all metrics of a step that do not depend on the clock."""
    advantaged = result.advantaged
    step = float(result.batch.step)
    metrics = {"training/global_step": step, "training/epoch": float(epoch)}
    if spec.algorithm.given is not None:
        return metrics | length_metrics(rows) | result.statistics
    limit = spec.data.max_prompt_tokens
    metrics |= row_metrics(rows, max_prompt_tokens=limit, is_scored=spec.is_scored)
    if advantaged is None:
        return metrics | result.statistics
    values, explained = advantaged.values, advantaged.explained_variance
    return {
        **metrics,
        **advantaged.advantages.named("critic/advantages"),
        **advantaged.returns.named("critic/returns"),
        "training/zero_signal_groups": advantaged.zero_signal_groups,
        **balance_metrics(advantaged.tokens_owned, advantaged.tokens_computed),
        **({} if values is None else values.named("critic/values")),
        **({} if explained is None else {"critic/vf_explained_var": explained}),
        **advantaged.told,
        **result.statistics,
    }


def evaluation_metrics(batch: Batch) -> dict[str, float]:
    """Return verl's `val-core` and `val-aux` metrics of a validation batch."""
    prompts = map(batch.prompt_of, range(batch.num_rows))
    figures = batch.figures or [b""] * batch.num_rows
    return validation_metrics(
        ValidationRow(prompt.data_source, prompt.index, score, extras, own)
        for prompt, score, extras, own in zip(
            prompts, batch.scores, batch.values(), figures, strict=True
        )
    )
