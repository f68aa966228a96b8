"""The training loop: runs steps until the job is done, and recovers from lost ranks.

    start or resume all roles
    validate, if requested
    for each step: save the checkpoint of the previous step, if due
                   rollout, reward, advantages, update, weight sync
                   validate, if due; write metrics and journal
    save a checkpoint, export the model

`Progress` is the whole state of the loop. It changes only after a step, and is in the journal
before anything depends on it. So a repeated step makes the same requests, and the ranks answer from
memory those that they have done.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ppojob_api.run_layout import EXPORT_FOLDER
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer import failpoints
from ppojob_trainer.checkpoint.journal import Exported, Journal, StepDone, StepTrained
from ppojob_trainer.checkpoint.manifest import DataCursor, Progress
from ppojob_trainer.controller.adapted_state import kl_metrics, next_kl, next_values
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.checkpoints import Checkpoints
from ppojob_trainer.controller.demonstrations import Demonstrations
from ppojob_trainer.controller.journal_state import changes, without_tables
from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.records import (
    Records,
    evaluation_metrics,
    step_rows,
    training_metrics,
)
from ppojob_trainer.controller.recovery import Recovery
from ppojob_trainer.controller.row_sampling import RowSampling
from ppojob_trainer.controller.samples import log_samples
from ppojob_trainer.controller.step_warnings import StepWarnings
from ppojob_trainer.controller.training_step import StepResult, TrainingStep
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import PromptOrder
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import (
    Interrupted,
    JobFailed,
    PPOJobError,
    RewardFailed,
    RoleLost,
    SamplerFailed,
    StorageError,
)
from ppojob_trainer.metrics.step_metrics import speed_metrics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rpc.client import Traffic
from ppojob_trainer.rpc.methods import EXPORT_MODEL
from ppojob_trainer.rpc.wire import Nothing, RequestId

_log = logging.getLogger(__name__)
Outcome = tuple[Progress, dict[str, float]]
"""The state after a step, and its metrics."""
STEP_BEGIN = failpoints.declare("controller.step.begin")
STEP_COMPUTED = failpoints.declare("controller.step.computed")
STEP_RECORDED = failpoints.declare("controller.step.recorded")
STEP_JOURNALED = failpoints.declare("controller.step.journaled")


class _ValidationAborted(Exception):  # noqa: N818  it is no error
    """The job was asked to stop; `progress` is the state without a validation."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self.progress = progress


@dataclass
class Loop:
    """The training loop of a job."""

    spec: PPOJobSpec
    total_steps: int  # number of steps; with dynamic sampling over epochs, the maximum
    num_devices: int  # GPUs with a model in the whole job, or ranks without GPUs
    dataset: PromptDataset
    order: PromptOrder  # order in which prompts are drawn
    sampling: RowSampling | None  # custom sampler, which replaces `order`; None without one
    training: TrainingStep
    validation: PromptDataset | None
    records: Records
    checkpoints: Checkpoints
    recovery: Recovery
    journal: Journal
    reporter: Reporter
    stop_requested: Callable[[], bool]  # whether the job was asked to stop after this step
    report_progress: Callable[[], None]  # called when a step is journaled
    _unvalidated: StepTrained | None = None
    _warnings: StepWarnings = field(default_factory=StepWarnings)
    _is_begun: bool = False  # whether ranks may have begun the next step

    def fit(self) -> Progress:
        """Train until the job is done or asked to stop; all steps are then in a checkpoint.

        Raises:
            ConfigError: validations do not report the metric of the best checkpoint.
            JobFailed: a stage failed, or roles are lost repeatedly.
            RewardFailed: a reward function failed in the first step.
            SamplerFailed: the custom sampler failed in the first step.
            StorageError: a disk refused metrics, journal or the last checkpoint.
        """
        position = self.recovery.begin_attempt()
        self._unvalidated = position.unvalidated
        before = position.progress or self.recovery.fresh
        checkpoint = self.checkpoints.newest()
        step = position.progress.step if position.progress else checkpoint or 0
        self.reporter.training.begin(position.controller_attempt + 1, step, checkpoint)
        progress = self._recovered(partial(self.recovery.resume, position), before)
        if self._is_begun:
            self.checkpoints.adopt(position)
        if self.checkpoints.copies is not None:
            self.checkpoints.copies.start()
        while True:
            in_step = True
            try:
                while not (self.is_done(progress) or self._stops(progress)):
                    progress = self._advance(progress)
                in_step = False
                self._finish(progress)
                return progress
            except RoleLost as loss:
                progress = self._recovered(partial(self.recovery.recover, loss, progress), progress)
                self._is_begun = self._is_begun and in_step

    def is_done(self, progress: Progress) -> bool:
        """Whether all steps are done and no validation is missing."""
        return self._is_last(progress) and not self._needs_validation(progress)

    def _needs_validation(self, progress: Progress) -> bool:
        return self._validates_first(progress) or self._missing_validation(progress) is not None

    def _stops(self, progress: Progress) -> bool:
        """Whether a stop was requested, and the ranks have not begun the next step."""
        return self.stop_requested() and (not self._is_begun or self._needs_validation(progress))

    def _is_last(self, progress: Progress) -> bool:
        """Whether no step follows: all steps are done, or all epochs are read."""
        passes, (_, size) = self.spec.steps.epochs, self.spec.algorithm.draw
        place = progress.data.place
        is_read = passes is not None and self.order.passes_read(place, size) >= passes
        return is_read or progress.step >= self.total_steps

    def _save_if_due(self, progress: Progress) -> None:
        self._wait_for_checkpoint()
        if self.checkpoints.is_due(progress):
            with self._skipping(progress.step):
                self.checkpoints.save(progress, in_background=self.spec.checkpoint.background)
        copies = self.checkpoints.copies
        if copies is not None and copies.problem is not None:
            self.reporter.notice(copies.problem)

    def _wait_for_checkpoint(self) -> None:
        with self._skipping(self.checkpoints.in_flight_step or 0):
            self.checkpoints.wait()

    @contextlib.contextmanager
    def _skipping(self, step: int) -> Iterator[None]:
        """Skip the checkpoint of a step if a disk refuses it."""
        try:
            yield
        except StorageError as problem:
            _log.error("no checkpoint after step %d: %s", step, problem)
            self.reporter.report(message=f"no checkpoint: {problem}")
            self.checkpoints.skip(step)

    def _advance(self, progress: Progress) -> Progress:
        """Run the first or a missing validation, or a step; return the state after it.

        If a job that trains is asked to stop, its validation is aborted, and missing then.
        """
        try:
            if self._validates_first(progress):
                return self._record(progress, *self._first_validation(progress))
            if (trained := self._missing_validation(progress)) is not None:
                return self._record(progress, *self._late_validation(progress, trained))
            return self._record(progress, *self._step(progress))
        except _ValidationAborted as aborted:
            return aborted.progress

    def _validates_first(self, progress: Progress) -> bool:
        steps = self.spec.steps
        has_first = self.validation is not None and (steps.validate_first or not steps.trains)
        return has_first and progress.step == 0 and progress.metrics_lines == 0

    def _missing_validation(self, progress: Progress) -> StepTrained | None:
        """Return the last step, if an earlier run ended during its validation."""
        trained = self._unvalidated
        return trained if trained and trained.progress.step == progress.step else None

    def _first_validation(self, progress: Progress) -> Outcome:
        timer = self._timer()
        self.reporter.report(phase="Training", step=0)
        with timer("testing"):
            metrics = self._validate(progress)
        metrics |= timer.finish().metrics()
        return msgspec.structs.replace(progress, metrics_lines=1), metrics

    def _step(self, progress: Progress) -> Outcome:
        step = progress.step + 1
        timer = self._timer()
        self.reporter.report(phase="Training", step=step, message="")
        if self.checkpoints.is_due(progress) or self.checkpoints.is_refused:
            with timer("save_checkpoint"):
                self._save_if_due(progress)
        failpoints.hit(STEP_BEGIN)
        self._go_to(progress)
        algorithm, control = self.spec.algorithm, self.training.entropy
        entropy = progress.entropy_coefficient
        if entropy is None:
            entropy = algorithm.entropy_coefficient
        kl, beliefs = progress.kl_coefficient or 0.0, progress.prompt_values
        try:
            result = self.training.run(step, self._draw, kl, entropy, timer, beliefs)
        except (RewardFailed, SamplerFailed) as failure:
            raise self._after_checkpoint(failure, progress) from failure
        self.records.keep_advantages(result)
        self._log_samples(result.batch)
        rows = step_rows(result)
        metrics = training_metrics(result, rows, self.spec, self.order.place[0])
        self._warn(result, metrics)
        metrics |= kl_metrics(algorithm.kl, kl, result)
        supervised = self.training.supervised
        trained = msgspec.structs.replace(
            progress,
            step=step,
            data=DataCursor(*self.order.place, sha256=progress.data.sha256),
            demonstrations=None if supervised is None else supervised.cursor,
            kl_coefficient=next_kl(algorithm.kl, progress, result),
            entropy_coefficient=None
            if control is None
            else control.after(entropy, result.statistics["actor/entropy"]),
            prompt_values=next_values(algorithm.spo, progress, result),
            metrics_lines=progress.metrics_lines + 1,
            tokens=progress.tokens + rows.total_tokens,
        )
        if self.sampling is not None:
            trained = self.sampling.after(trained, result.drawn)
        if self._is_validation_due(trained):
            metrics |= self._validate_after(trained, metrics, timer)
        failpoints.hit(STEP_COMPUTED)
        times = timer.finish()
        metrics |= times.metrics() | speed_metrics(rows, times, num_devices=self.num_devices)
        caller = self.training.stages.roles.caller
        metrics |= caller.traffic.metrics()
        caller.traffic = Traffic()
        seconds = progress.seconds + times.step_seconds
        return msgspec.structs.replace(trained, seconds=seconds), metrics

    def _warn(self, result: StepResult, metrics: Mapping[str, float]) -> None:
        step = result.batch.step
        failed_calls, failed_rows = metrics.get("tool/failed_share", 0.0), 0.0
        if self.spec.agent is not None and not self.spec.agent.tools:
            # With tools a row often has a failed call, and goes on.
            failed_rows = metrics.get("user/failed_rows", 0.0)
        warnings = [
            self._warnings.no_room(step, result.batch.counts),
            self._warnings.failed_calls(step, failed_calls, failed_rows),
        ]
        if result.advantaged is not None:
            zero = result.advantaged.zero_signal_groups
            learnt = result.scores if self.spec.algorithm.learns_scores else None
            warnings.append(self._warnings.no_signal(step, zero, learnt))
        for warning in filter(None, warnings):
            self.reporter.notice(warning)

    def _go_to(self, progress: Progress) -> None:
        supervised = self.training.supervised
        self.order.place = progress.data.place
        if supervised is not None and progress.demonstrations is not None:
            supervised.load(progress.demonstrations)
        if self.sampling is not None:
            self.sampling.begin(progress)

    def _draw(self, count: int) -> list[PromptRow]:
        rows = self.order.next_batch(count)  # also with a sampler: this moves the cursor
        if self.sampling is not None:
            rows = self.sampling.next(count)
        return self.dataset.rows(rows)

    def _validate_after(
        self, progress: Progress, metrics: dict[str, float], timer: StepTimer
    ) -> dict[str, float]:
        """Validate; if that is aborted or a reward fails, journal the trained step first."""
        try:
            with timer("testing"):
                return self._validate(progress)
        except (_ValidationAborted, RewardFailed) as end:
            seconds = progress.seconds + timer.finish().step_seconds
            done = msgspec.structs.replace(progress, seconds=seconds)
            trained = StepTrained(progress=without_tables(done), metrics=dict(metrics))
            self.journal.append(trained)
            self._unvalidated = trained
            if isinstance(end, _ValidationAborted):
                raise _ValidationAborted(done) from None
            raise self._after_checkpoint(end, done) from end

    def _late_validation(self, progress: Progress, trained: StepTrained) -> Outcome:
        timer = self._timer()
        self.reporter.report(phase="Training", step=progress.step)
        # A controller killed between metrics and journal has left the metrics of this step.
        self.records.sinks.cut_after(progress.step - 1)
        known = trained.metrics.items()
        metrics = {name: math.nan if value is None else value for name, value in known}
        metrics |= self._validate_after(progress, metrics, timer)
        times = timer.finish()
        metrics |= times.metrics()
        seconds = progress.seconds + times.step_seconds
        return msgspec.structs.replace(progress, seconds=seconds), metrics

    def _after_checkpoint(self, failure: PPOJobError, done: Progress) -> PPOJobError:
        """Save the finished steps; return the failure with a line about the checkpoint."""
        if done.step == 0:
            return failure
        self.reporter.report(stage="save_checkpoint")
        try:
            self._wait_for_checkpoint()
            if not self.checkpoints.store.is_whole(done.step):
                self.checkpoints.save(done)
        except (RoleLost, StorageError) as problem:
            line = f"no checkpoint after step {done.step}: {problem}"
        else:
            line = (
                f"step {done.step} is saved: fix the function; `ppojob export` exports the policy "
                "of that step, also of a job on a cluster"
            )
        what, *response = str(failure).split("\n")
        return JobFailed("\n".join([what, line, *response]))

    def _timer(self) -> StepTimer:
        return StepTimer(on_stage=lambda stage: self.reporter.report(stage=stage))

    def _is_validation_due(self, progress: Progress) -> bool:
        if self.validation is None:
            return False
        steps = self.spec.steps
        is_due = steps.validate_every is not None and progress.step % steps.validate_every == 0
        return is_due or (steps.validate_last and self._is_last(progress))

    def _validate(self, progress: Progress) -> dict[str, float]:
        if self.stop_requested() and self.spec.steps.trains:
            raise _ValidationAborted(progress)
        try:
            return self._validation_metrics(progress.step)
        except Interrupted:
            raise _ValidationAborted(progress) from None

    def _validation_metrics(self, step: int) -> dict[str, float]:
        assert self.validation is not None
        source = self.training.source
        if isinstance(source, Demonstrations):
            return source.loss(self.validation, step)
        samples = self.spec.rollout.validation.samples
        stages = self.training.stages
        batch = stages.validate(self.validation, samples, step)
        self._log_samples(batch)
        if self.spec.steps.generate_only:
            self.records.keep_responses(batch, stages.tape.files(batch))
            return {}
        metrics = evaluation_metrics(batch)
        if self.checkpoints.best is not None:
            self.checkpoints.best.refuse_unknown(metrics)
        return metrics

    def _log_samples(self, batch: Batch) -> None:
        log_samples(self.records.run_folder, batch.purpose, batch.step, self.spec.num_examine)

    def _record(self, before: Progress, progress: Progress, metrics: dict[str, float]) -> Progress:
        """Write the metrics, then the journal, so that each journaled step has its metrics."""
        self._unvalidated = None
        self._is_begun = False
        self.records.sinks.write(progress.step, metrics)
        failpoints.hit(STEP_RECORDED)
        self.journal.append(StepDone(progress=changes(before, progress)))
        failpoints.hit(STEP_JOURNALED)
        self.report_progress()
        self.reporter.training.done(progress.step, metrics)
        return progress

    def _finish(self, progress: Progress) -> None:
        """Save the last steps; if the job is done, export and copy the model."""
        if progress.step == 0:  # nothing was trained
            return
        total = progress.step if self.is_done(progress) else self.total_steps
        self.reporter.report(phase="Finishing", stage="save_checkpoint", total_steps=total)
        self._wait_for_checkpoint()
        if not self.checkpoints.store.is_whole(progress.step):
            self.checkpoints.save(progress)
        self.checkpoints.prune()
        if self.is_done(progress) and self.spec.checkpoint.export:
            self.reporter.report(stage="export")
            id_ = RequestId(0, progress.step, "export_model")
            stages = self.training.stages
            stages.roles.broadcast(stages.roles.owner, EXPORT_MODEL, Nothing(), id_)
            self.journal.append(Exported(step=progress.step))
        if self.is_done(progress) and self.checkpoints.copies is not None:
            self.reporter.report(stage="copy")
            folder = self.records.run_folder / EXPORT_FOLDER
            export = folder if self.spec.checkpoint.export else None
            self.checkpoints.copies.finish(export, self.stop_requested)

    def _recovered(self, recover: Callable[[], Progress], before: Progress) -> Progress:
        """Recover all roles, also if more of them are lost meanwhile."""
        rewinds = self.recovery.roles.rewinds
        while True:
            try:
                progress = recover()
            except RoleLost as loss:
                recover = partial(self.recovery.recover, loss, before)
            else:
                self._is_begun = self.recovery.roles.rewinds == rewinds
                checkpoint = self.checkpoints.newest(progress.step)
                self.reporter.training.resume(progress.step, checkpoint, self.records.history())
                return progress
