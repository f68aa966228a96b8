"""State of a run from its folder at one moment, and values derived from it.

The folder is read while a run writes to it; whatever stands there, it answers a `RunState`.
`status.json` is replaced as a whole. `metrics.jsonl` is appended to, and cut back when steps are
thrown away, so what was read before is held against the file at every look.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import METRICS_FILE
from ppojob_trainer.controller.progress import STATUS_FILE, RunStatus, StepTimeEstimate
from ppojob_trainer.metrics.line_follower import LineFollower

STEP_SECONDS: Final = "timing_s/step"

_FIGURES: Final = (
    ("reward", "critic/score/mean"),
    ("divergence", "distillation/loss"),
    ("loss", "train/loss"),
    ("accuracy", "train/rewards/accuracies"),
    ("accuracy", "actor/rewards/accuracies"),
    ("length", "response_length/mean"),
    ("entropy", "actor/entropy"),
    ("grad norm", "actor/grad_norm"),
    ("grad norm", "train/grad_norm"),
)
_TOKENS: Final = "perf/total_num_tokens"
_STAGE: Final = re.compile(r"timing_s/([^/]+)")
_VALIDATION_PREFIX: Final = "val-core/"
_OF_GIVEN: Final = {
    "val/loss": "loss",
    "val/kl": "kl",
    "val/rewards/accuracies": "accuracy",
    "val/rewards/margins": "margin",
}
"""Short names of the metrics of validations on given answers."""
_NO_STAGES: Final = frozenset({"step", "unaccounted"})
_WAITING_PHASES: Final = frozenset({"Starting", "Recovering"})
_OVER_PHASES: Final = frozenset({"Finishing", "Succeeded", "Failed", "Interrupted"})
_NO_STATUS: Final = RunStatus("Starting")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A line of `metrics.jsonl`."""

    step: int  # number of the step; 0 is the validation before the first
    time: float  # Unix seconds at which it was written
    values: Mapping[str, float]  # the finite numbers by their name in docs/metrics.md

    @property
    def figures(self) -> dict[str, float]:
        """Main metrics of a training step, by a short name; `tokens/s` is that of the whole job."""
        found = {name: self.values[key] for name, key in _FIGURES if key in self.values}
        tokens, seconds = self.values.get(_TOKENS), self.values.get(STEP_SECONDS)
        if tokens is not None and seconds:
            found["tokens/s"] = tokens / seconds
        return found

    @property
    def validation(self) -> dict[str, float]:
        """Means of the validation by a short name, `gsm8k mean@1`; empty for none."""
        return {
            short_name(name): value
            for name, value in self.values.items()
            if name in _OF_GIVEN
            or (name.startswith(_VALIDATION_PREFIX) and not name.endswith("/std"))
        }

    @property
    def stage_seconds(self) -> list[tuple[str, float]]:
        """Seconds of each stage, the longest first."""
        times = [
            (stage[1], seconds)
            for name, seconds in self.values.items()
            if (stage := _STAGE.fullmatch(name)) and stage[1] not in _NO_STAGES
        ]
        return sorted(times, key=lambda stage: -stage[1])


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run at one time."""

    status: RunStatus = _NO_STATUS  # the controller's status; its `since` is 0 before the first
    records: tuple[StepRecord, ...] = ()  # all valid steps, in ascending order

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for pods."""
        return self.status.phase in _WAITING_PHASES

    @property
    def is_over(self) -> bool:
        """Whether there will be no further steps."""
        return self.status.phase in _OVER_PHASES

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        return tuple(record for record in self.records if record.step > 0)

    @property
    def validations(self) -> tuple[StepRecord, ...]:
        return tuple(record for record in self.records if record.validation)

    @property
    def done_steps(self) -> int:
        return self.records[-1].step if self.records else 0

    def figure_series(self) -> dict[str, list[float]]:
        """Return the values of each main metric, in the order of the training steps."""
        return _series(record.figures for record in self.steps)

    def validation_series(self) -> dict[str, list[float]]:
        """Return the values of each validation metric, in the order of the steps."""
        return _series(record.validation for record in self.validations)

    def remaining_seconds(self, now: float) -> float | None:
        """Estimate the remaining time, at a time in Unix seconds; None if it is unknown.

        The elapsed time of the current step is subtracted.
        """
        pace = StepTimeEstimate()
        for record in self.steps:
            pace.add(record.values)
        missing, each = self.status.total_steps - self.done_steps, pace.seconds
        if each is None or missing <= 0 or self.is_over:
            return None
        return each * missing - min(max(0.0, now - self.steps[-1].time), each)


class RunReader:
    """Reads a run folder incrementally, of which all may be missing.

    A status from before `since`, in Unix seconds, is of an earlier run and ignored.
    """

    def __init__(self, folder: Path, *, since: float = 0.0) -> None:
        self._folder = folder
        self._since = since
        self._lines = LineFollower(folder / METRICS_FILE)
        self._records: tuple[StepRecord, ...] = ()

    def read(self) -> RunState:
        lines = self._lines.read()
        kept = () if self._lines.is_restarted else self._records
        new = (record for line in lines if (record := step_record(line)) is not None)
        self._records = (*kept, *new) if lines else kept
        return RunState(self._status(), self._records)

    def _status(self) -> RunStatus:
        try:
            data = (self._folder / STATUS_FILE).read_bytes()
            status = msgspec.json.decode(data, type=RunStatus)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return _NO_STATUS
        return status if status.since >= self._since else _NO_STATUS


def step_record(line: bytes) -> StepRecord | None:
    """Parse a line of `metrics.jsonl`, without null values; None if it is invalid."""
    try:
        values = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    step = values.pop("step", None)
    if not isinstance(step, int):
        return None
    numbers = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return StepRecord(step, numbers.pop("time", 0.0), numbers)


def _series(rows: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            series.setdefault(name, []).append(value)
    return series


def short_name(name: str) -> str:
    """Shorten `val-core/gsm8k/acc/mean@1` to `gsm8k mean@1`, and `val/loss` to `loss`."""
    if name in _OF_GIVEN:
        return _OF_GIVEN[name]
    source, found, moment = name.removeprefix(_VALIDATION_PREFIX).partition("/acc/")
    return f"{source} {moment.removesuffix('/mean')}" if found else source


def work_of(config: RunConfig) -> str:
    """Return what a job does in the phase `Training`, as one word."""
    steps = config.spec.steps
    return "Training" if steps.trains else "Generating" if steps.generate_only else "Validating"
