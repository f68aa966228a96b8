"""View of a running job: a live table on a terminal, plain lines elsewhere.

A view reads only the run folder, so it can also show a run of another machine. It never stops a
run: if the terminal closes, only the view ends.
"""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import click
import msgspec

from ppojob_api import contract
from ppojob_api.problem import counted, printable
from ppojob_cli import run_state
from ppojob_cli.figures import duration, number
from ppojob_cli.run_state import RunReader, RunState, StepRecord
from ppojob_cli.summary import Ending, RunSummary, ending_lines, summary_lines
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.controller.progress import RunStatus

_ROWS_EVERY_SECONDS = 30.0
_VALIDATING = "testing"  # verl's name of the stage, as in timing_s/testing
AskPods = Callable[[], Mapping[str, str]]
"""Returns the phases of pods by name; called while they start."""

Kind = Literal["", "note", "error", "sample"]
"""Kind of lines, which determines their stream and style."""


class View(Closeable):
    """Shows a run; use in a `with` block.

    `since` is that of `RunReader`, and `work` the name to show for the phase `Training`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        num_samples: int = 0,
        since: float = 0.0,
        work: str = "Training",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.clock = clock
        self._folder = folder
        self._num_samples = num_samples
        self._work = work
        self._reader = RunReader(folder, since=since)
        self.state = self._read()
        self._records = self.state.records
        self._times = {record.step: record.time for record in self.state.records}
        self._notices: set[str] = set()

    def close(self) -> None:
        """Show what is new, and end live output."""
        self.look()
        self.show_new()

    def refresh(self, ask_pods: AskPods) -> None:
        """Read the run folder and show what is new."""
        self.look()
        self._show(ask_pods() if self.state.is_waiting else {})

    def write(self, lines: Iterable[str], kind: Kind = "") -> None:
        """Write permanent lines. The pipe or terminal may be closed; the run continues."""
        with contextlib.suppress(OSError):
            for line in lines:
                self._print(line, kind)

    @abstractmethod
    def _show(self, pods: Mapping[str, str]) -> None: ...

    @abstractmethod
    def _print(self, line: str, kind: Kind) -> None: ...

    def show_record(self, record: StepRecord, *, again: bool) -> None:
        """Show a step or a validation; `again` if it is repeated after a rewind."""

    def look(self) -> None:
        self.state = self._read()

    def _read(self) -> RunState:
        state = self._reader.read()
        if state.status.phase != "Training":
            return state
        return replace(state, status=msgspec.structs.replace(state.status, phase=self._work))

    @property
    def what_is_finished(self) -> str:
        """What a job still does after a request to stop."""
        if self.state.is_waiting:
            return "stopping before a step begins"
        if self._work == "Training":
            if self.state.status.stage == _VALIDATING:
                return "leaving the validation to the next start, and writing a checkpoint"
            return "finishing the step, then writing a checkpoint"
        return f"{self._work.lower()} to the end, for there is no checkpoint on the way"

    def show_new(self) -> None:
        """Show new notices, steps and validations, without those of earlier runs."""
        for line in self.state.status.notices:
            if line not in self._notices:
                self._notices.add(line)
                self.note(line)
        before, self._records = self._records, self.state.records
        if self._records is before:
            return
        done = self.state.done_steps
        if before and done < before[-1].step:
            first, last = done + 1, before[-1].step
            steps = f"step {last}" if first == last else f"steps {first} to {last}"
            self.write([f"back to step {done}: repeating {steps}"])
        for record in self._records:
            again = record.step in self._times
            if self._times.get(record.step) != record.time:
                self._times[record.step] = record.time
                self.show_record(record, again=again)
                if not again and self._num_samples:
                    self.write(self._sample_lines(record), "sample")

    def note(self, text: str) -> None:
        self.write([printable(text)], "note")

    def ended(self, ending: Ending) -> None:
        """Show how the run ended, and its results."""
        self.look()
        self.show_new()
        is_error = ending.exit_code not in {contract.EXIT_DONE, contract.EXIT_INTERRUPTED}
        lines = ending_lines(ending, self.state.status, self._folder)
        self.write(lines, "error" if is_error else "")

    def already_done(self, summary: RunSummary) -> None:
        """Show that the run was finished before."""
        self.write(["done already; --output DIR runs it once more elsewhere"])
        self.write(summary_lines(summary, self._folder))

    def _sample_lines(self, record: StepRecord) -> Iterable[str]:
        # Parquet takes half a second to load, which would delay the start of the pods.
        from ppojob_trainer.controller.samples import read_samples, sample_lines

        purposes = ["train"] if record.step > 0 else []
        purposes += ["validation"] if record.validation else []
        for purpose in purposes:
            for sample in read_samples(self._folder, purpose, record.step, self._num_samples):
                yield from sample_lines(sample)


class PlainView(View):
    """Writes lines; notes and errors go to standard error."""

    _status_line = ""
    _rows_shown = 0.0  # when the number of complete responses was last shown, or a stage began

    def __enter__(self) -> Self:
        """Summarise earlier runs of this folder in one line."""
        if self.state.records:
            self.write(history_line(self.state))
        return self

    def _show(self, pods: Mapping[str, str]) -> None:
        line = status_line(self.state, pods)
        # The last steps come before the end, also if both are new.
        if self.state.is_over:
            self.show_new()
        if line != self._status_line:
            self._status_line = line
            self.write([line])
        self.show_new()
        status, now = self.state.status, self.clock()
        if status.rows[1] and now - max(self._rows_shown, status.since) >= _ROWS_EVERY_SECONDS:
            self._rows_shown = now
            self.write([f"{printable(status.stage)}: {rows_line(status)}"])

    def _print(self, line: str, kind: Kind) -> None:
        click.echo(line, err=kind in {"note", "error"})

    def show_record(self, record: StepRecord, *, again: bool) -> None:
        behind = " (again)" if again else ""
        if record.step > 0:
            left = self.state.remaining_seconds(self.clock())
            self.write([step_line(record, self.state.status.total_steps, left) + behind])
        if record.validation:
            self.write([validation_line(record) + behind])


def status_line(state: RunState, pods: Mapping[str, str]) -> str:
    """Format phase, message and awaited pods; constant during a phase."""
    phase = state.status.phase
    # The full reason of a failure follows at the end, on standard error.
    message = "" if phase == "Failed" else state.status.message.partition("\n")[0]
    waited_for = ", ".join(f"{pod} {pod_phase}" for pod, pod_phase in pods.items())
    details = "; ".join(part for part in (message, waited_for) if part)
    return printable(f"{phase.lower()}: {details}" if details else phase.lower())


def rows_line(status: RunStatus) -> str:
    """Format the number of complete responses of the current stage."""
    ended, asked = status.rows
    return f"{ended:,} of {asked:,} responses"


def step_line(record: StepRecord, total_steps: int, remaining: float | None) -> str:
    """Format a step as one line."""
    parts = [f"step {record.step}/{total_steps or '?'}"]
    parts += [f"{name} {number(value)}" for name, value in record.figures.items()]
    if run_state.STEP_SECONDS in record.values:
        parts.append(duration(record.values[run_state.STEP_SECONDS]))
    if remaining is not None:
        parts.append(f"left {duration(remaining)}")
    return "  ".join(parts)


def validation_line(record: StepRecord) -> str:
    """Format a validation as one line."""
    values = (f"{name} {number(value)}" for name, value in record.validation.items())
    return printable(f"validation after step {record.step}: {'  '.join(values)}")


def history_line(state: RunState) -> list[str]:
    """Summarise the steps of earlier runs."""
    rewards = state.figure_series().get("reward")
    curve = f", reward {number(rewards[0])} -> {number(rewards[-1])}" if rewards else ""
    steps = counted(state.done_steps, "step")
    lines = [f"the run folder has {steps}{curve}"] if state.done_steps else []
    return lines + [validation_line(record) for record in state.validations[-1:]]
