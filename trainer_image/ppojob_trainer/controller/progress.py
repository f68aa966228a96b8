"""Progress reports: `status.json` in the run folder, and `status.training` of the PPOJob.

`status.json` is replaced atomically and not fsynced. `status.training` is sent after the journal is
written, so it is never ahead of the journal.
"""

import contextlib
import logging
import math
import os
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.status import TrainingStatus

STATUS_FILE = "status.json"
_log = logging.getLogger(__name__)

Record = Mapping[str, float | None]
"""The metrics of a step; None for values that are not finite."""

_RARE_STAGES: Final = ("timing_s/save_checkpoint", "timing_s/testing")
"""Stages of some steps only."""

_FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "reward": ("critic/score/mean",),
    "loss": ("train/loss",),
    "kl": (
        "distillation/loss",
        "train/kl",
        "actor/kl_loss",
        "actor/reward_kl_penalty",
        "actor/ppo_kl",
    ),
    "entropy": ("actor/entropy",),
    "response_tokens": ("response_length/mean",),
}
"""Field -> metrics; the first one present is reported."""

_STEP_SECONDS: Final = "timing_s/step"
_TOKENS: Final = "perf/total_num_tokens"
_VALIDATION: Final = re.compile(r"val-core/.+/acc/mean@1")
_STAGES: Final = frozenset({"Starting", "Training", "Recovering", "Finishing"})
_RECENT_STEPS: Final = 10
_DIGITS: Final = 4


class StepTimeEstimate:
    """Estimates the duration of a step: median of recent steps, plus the mean of rare stages."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._steps = 0
        self._rare_seconds = 0.0

    def add(self, metrics: Record) -> None:
        """Add a step; steps without a duration are ignored."""
        seconds = _finite(metrics.get(_STEP_SECONDS))
        if seconds is not None:
            rare = sum(_finite(metrics.get(stage)) or 0.0 for stage in _RARE_STAGES)
            self._recent.append(seconds - rare)
            self._steps += 1
            self._rare_seconds += rare

    @property
    def seconds(self) -> float | None:
        """Return the estimate in seconds; None while unknown."""
        if not self._steps:
            return None
        return statistics.median(self._recent) + self._rare_seconds / self._steps


class TrainingReport:
    """Maintains `status.training`; nothing is published before `begin`."""

    def __init__(self, publish: Callable[[TrainingStatus], None]) -> None:
        self._publish = publish
        self._state = TrainingStatus()
        self._step_time = StepTimeEstimate()

    def begin(self, attempt: int, step: int, saved: int | None) -> None:
        """Report a new attempt of the controller; `saved` is the step of the newest checkpoint."""
        self._update(attempt=attempt, step=step, last_checkpoint_step=saved)

    def change_phase(self, phase: str, total_steps: int) -> None:
        """Report a phase of the loop; `total_steps` is 0 while unknown.

        The stage stays after success or failure, which the operator reports.
        """
        stage = phase if phase in _STAGES else self._state.stage
        if phase == "Interrupted":
            stage = ""
        self._update(stage=stage, total_steps=total_steps or None)

    def resume(self, step: int, saved: int | None, history: Iterable[Record]) -> None:
        """Report that the job resumes after a step, possibly an earlier one.

        `saved` is the step of the newest checkpoint; `history` has the metrics of all steps so far.
        """
        self._step_time = StepTimeEstimate()
        changes: dict[str, Any] = dict.fromkeys((*_FIGURES, "tokens_per_second", "validation"))
        for metrics in history:
            changes |= self._figures(metrics)
        self._update(step=step, last_checkpoint_step=saved, **changes)

    def done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a finished step; step 0 is the validation before the first step."""
        self._update(step=step, **self._figures(metrics))

    def checkpoint(self, step: int) -> None:
        self._update(last_checkpoint_step=step)

    def _figures(self, metrics: Record) -> dict[str, float | None]:
        """Return the fields to update; without a validation, its field is left out."""
        found: dict[str, float | None] = {}
        scores = [value for name, value in metrics.items() if _VALIDATION.fullmatch(name)]
        finite = [value for value in map(_finite, scores) if value is not None]
        if finite:
            found["validation"] = _rounded(statistics.fmean(finite))
        for name, sources in _FIGURES.items():
            value = next((metrics[one] for one in sources if one in metrics), None)
            found[name] = _rounded(_finite(value))
        seconds, tokens = _finite(metrics.get(_STEP_SECONDS)), _finite(metrics.get(_TOKENS))
        if seconds and tokens is not None:  # without tokens it is a validation alone
            self._step_time.add(metrics)
            found["tokens_per_second"] = _rounded(tokens / seconds)
        return found

    def _update(self, **changes: object) -> None:
        before, state = self._state, self._state.model_copy(update=changes)
        left, seconds = (state.total_steps or 0) - state.step, self._step_time.seconds
        eta = None if left <= 0 or seconds is None else duration(seconds * left)
        self._state = state.model_copy(update={"eta": eta})
        if self._state.attempt and self._state != before:
            self._publish(self._state)


def duration(seconds: float) -> str:
    """Format a duration by its two largest units: `3d4h`, `1h30m`, `2m05s`, `40s`."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{left:02}s"
    hours, minutes = divmod(round(whole / 60), 60)
    if hours < 24:
        return f"{hours}h{minutes:02}m"
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days}d{hours:02}h"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


class RunStatus(msgspec.Struct, frozen=True):
    """Content of `status.json`."""

    # `Starting`, `Training`, `Recovering`, `Finishing`, `Succeeded`, `Failed` or `Interrupted`
    phase: str
    step: int = 0
    total_steps: int = 0  # steps of the whole job; 0 while unknown
    stage: str = ""  # current stage, such as `gen`, or empty
    since: float = 0.0  # start of the stage, in unix seconds
    message: str = ""  # one line, or empty
    restarts: int = 0  # of roles
    notices: tuple[str, ...] = ()  # warnings of the whole run
    rows: tuple[int, int] = (0, 0)  # generated rows of the stage, and all; (0, 0): not counted


class Reporter:
    """Reports the status of the job; `training` reports to its resource, if given."""

    def __init__(self, folder: Path, training: TrainingReport | None = None) -> None:
        self._path = folder / STATUS_FILE
        self._aside = folder / f".{STATUS_FILE}.aside"
        self.status = RunStatus("Starting", since=time.time())
        self.training = training or TrainingReport(lambda _: None)

    def report(self, **changes: object) -> None:
        """Change some fields and publish; errors of the disk are ignored."""
        changes = {"since": time.time(), "rows": (0, 0), **changes}
        self._publish(msgspec.structs.replace(self.status, **changes))
        self.training.change_phase(self.status.phase, self.status.total_steps)

    def report_rows(self, ended: int, asked: int) -> None:
        self._publish(msgspec.structs.replace(self.status, rows=(ended, asked)))

    def _publish(self, status: RunStatus) -> None:
        self.status = status
        with contextlib.suppress(OSError):
            self._aside.write_bytes(msgspec.json.encode(status))
            os.replace(self._aside, self._path)

    def notice(self, line: str) -> None:
        _log.warning("%s", line)
        if line not in self.status.notices:
            self.report(notices=(*self.status.notices, line))
