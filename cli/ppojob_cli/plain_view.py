"""The view for logs and pipes: a line for each step, each validation and each turn of the run."""

import contextlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import click

from ppojob_api import contract
from ppojob_api.problem import printable
from ppojob_cli import run_state
from ppojob_cli.figures import duration, number
from ppojob_cli.run_state import PodState, RunState, StepRecord
from ppojob_cli.shown import PodStates, Shown
from ppojob_cli.shown_records import NewRecord, ShownRecords
from ppojob_cli.summary import Ending, RunSummary, ending_lines, summary_lines


class PlainView:
    """Writes lines; notes and errors go to standard error.

    Args:
        shown: What is shown.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        before = shown.reader.read()
        self._history = before
        self._records = ShownRecords(before)
        self._turn = ""

    def __enter__(self) -> Self:
        """Tell in one line what earlier runs of this folder have done."""
        if self._history.records:
            _write(history_line(self._history))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held."""

    def refresh(self, pod_states: PodStates) -> None:
        """See `View`."""
        state = self._shown.reader.read()
        turn = turn_line(state, pod_states() if state.is_waiting else ())
        # The last steps and the end may be seen at one look.
        if state.is_over:
            self._show_new(state)
        if turn != self._turn:
            self._turn = turn
            _write([turn])
        self._show_new(state)

    def note(self, text: str) -> None:
        """See `View`."""
        _write([text], is_error=True)

    def ended(self, ending: Ending) -> None:
        """See `View`."""
        state = self._shown.reader.read()
        self._show_new(state)
        is_error = ending.exit_code not in {contract.EXIT_DONE, contract.EXIT_INTERRUPTED}
        _write(ending_lines(ending, state.status, self._shown.folder), is_error=is_error)

    def already_done(self, summary: RunSummary) -> None:
        """See `View`."""
        _write(["done already; --output DIR runs it once more elsewhere"])
        _write(summary_lines(summary, self._shown.folder))

    def _show_new(self, state: RunState) -> None:
        for line in self._records.take_notices(state):
            self.note(printable(line))
        new = self._records.take(state)
        if self._records.rewind is not None:
            _write([self._records.rewind])
        for item in new:
            self._show(item, state)

    def _show(self, item: NewRecord, state: RunState) -> None:
        again = " (again)" if item.is_again else ""
        if item.record.step > 0:
            left = state.remaining_seconds(self._shown.clock())
            _write([step_line(item.record, state.total_steps, left) + again])
        if item.record.validation:
            _write([validation_line(item.record) + again])
        if not item.is_again:
            _write(self._shown.sample_lines(item.record))


def turn_line(state: RunState, pods: Sequence[PodState]) -> str:
    """Where the run stands, in words that change only when it takes a turn."""
    message = state.status.message.partition("\n")[0] if state.status else ""
    if state.phase == "Failed":
        # The whole reason follows at the end, on standard error.
        message = ""
    waited_for = ", ".join(f"{pod.name} {pod.phase}" for pod in pods)
    told = "; ".join(part for part in (message, waited_for) if part)
    return printable(f"{state.phase.lower()}: {told}" if told else state.phase.lower())


def step_line(record: StepRecord, total_steps: int, remaining: float | None) -> str:
    """One line about one step."""
    parts = [f"step {record.step}/{total_steps or '?'}"]
    parts += [f"{name} {number(value)}" for name, value in record.figures.items()]
    if run_state.STEP_SECONDS in record.values:
        parts.append(duration(record.values[run_state.STEP_SECONDS]))
    if remaining is not None:
        parts.append(f"left {duration(remaining)}")
    return "  ".join(parts)


def validation_line(record: StepRecord) -> str:
    """One line about one validation."""
    values = (f"{name} {number(value)}" for name, value in record.validation.items())
    return printable(f"validation after step {record.step}: {'  '.join(values)}")


def history_line(state: RunState) -> list[str]:
    """One line about the steps that were there before this run."""
    rewards = state.figure_series().get("reward")
    curve = f", reward {number(rewards[0])} -> {number(rewards[-1])}" if rewards else ""
    lines = [f"the run folder has {state.done_steps} steps{curve}"] if state.done_steps else []
    return lines + [validation_line(record) for record in state.validations[-1:]]


def _write(lines: Iterable[str], *, is_error: bool = False) -> None:
    # Whoever read may be gone (a closed pipe or terminal); the run goes on.
    with contextlib.suppress(OSError):
        for line in lines:
            click.echo(line, err=is_error)
