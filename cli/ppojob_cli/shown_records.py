"""Which steps a person has seen: a resumed run shows no old step, a rewound one says so."""

from dataclasses import dataclass

from ppojob_cli.run_state import RunState, StepRecord


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that was not shown.

    Attributes:
        record: The record.
        is_again: Whether the step was shown before, and was done once more after a rewind.
    """

    record: StepRecord
    is_again: bool


class ShownRecords:
    """Remembers what was shown.

    Args:
        state: What stood in the folder before this run: none of it is new.
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

    def take(self, state: RunState) -> list[NewRecord]:
        """The records that are new since the last call; sets `rewind` where steps went away."""
        before, self._records = self._records, state.records
        self.rewind = None
        if self._records is before:
            return []
        if before and state.done_steps < before[-1].step:
            first, last = state.done_steps + 1, before[-1].step
            steps = f"step {last}" if first == last else f"steps {first} to {last}"
            self.rewind = f"back to step {state.done_steps}: repeating {steps}"
        new = [
            NewRecord(record, is_again=record.step in self._times)
            for record in state.records
            if self._times.get(record.step) != record.time
        ]
        self._times.update({item.record.step: item.record.time for item in new})
        return new
