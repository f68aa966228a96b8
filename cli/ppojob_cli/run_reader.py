"""Reads a run folder while a run writes to it; whatever stands there, it answers a `RunState`.

`status.json` is replaced as a whole. `metrics.jsonl` is appended to, and cut back when steps are
thrown away, so what was read before is held against the file at every look.
"""

import math
from pathlib import Path

import msgspec

from ppojob_api.run_layout import METRICS_FILE
from ppojob_cli.run_state import RunState, StepRecord
from ppojob_trainer.controller.progress import STATUS_FILE, TrainingStatus
from ppojob_trainer.metrics.new_lines import NewLines


class RunReader:
    """Looks at a run folder again and again, and reads only what is new.

    Args:
        folder: The run folder; it and all in it may be missing.
        since: Unix seconds; a status that is older was left by an earlier run.
    """

    def __init__(self, folder: Path, *, since: float = 0.0) -> None:
        self._folder = folder
        self._since = since
        self._lines = NewLines(folder / METRICS_FILE)
        self._records: tuple[StepRecord, ...] = ()

    def read(self) -> RunState:
        """The run as it stands now."""
        lines = self._lines.read()
        kept = () if self._lines.is_anew else self._records
        new = (record for line in lines if (record := step_record(line)) is not None)
        self._records = (*kept, *new) if lines else kept
        return RunState(self._status(), self._records)

    def _status(self) -> TrainingStatus | None:
        try:
            data = (self._folder / STATUS_FILE).read_bytes()
            status = msgspec.json.decode(data, type=TrainingStatus)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return status if status.since >= self._since else None


def step_record(line: bytes) -> StepRecord | None:
    """A line of `metrics.jsonl`, without what is null; None where it is no such line."""
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


class ShownRecords:
    """Which steps a person has seen: a resumed run shows no old step, a rewound one says so.

    Args:
        state: What stood in the folder before this run: none of it is new.

    Attributes:
        rewind: What to say where steps went away at the last look.
    """

    def __init__(self, state: RunState) -> None:
        self._records = state.records
        self._times = {record.step: record.time for record in state.records}
        self._notices: set[str] = set()
        self.rewind: str | None = None

    def take_notices(self, state: RunState) -> list[str]:
        """What the controller wants seen, and was not shown since the last call."""
        told = state.status.notices if state.status else ()
        new = [line for line in told if line not in self._notices]
        self._notices.update(new)
        return new

    def take(self, state: RunState) -> list[tuple[StepRecord, bool]]:
        """The records that are new since the last call, and whether each is done once more."""
        before, self._records = self._records, state.records
        self.rewind = None
        if self._records is before:
            return []
        if before and state.done_steps < before[-1].step:
            first, last = state.done_steps + 1, before[-1].step
            steps = f"step {last}" if first == last else f"steps {first} to {last}"
            self.rewind = f"back to step {state.done_steps}: repeating {steps}"
        new = [
            (record, record.step in self._times)
            for record in state.records
            if self._times.get(record.step) != record.time
        ]
        self._times.update({record.step: record.time for record, _ in new})
        return new
