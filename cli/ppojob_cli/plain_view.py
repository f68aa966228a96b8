"""The view for logs and pipes: a line for each step, each validation and each turn of the run."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Self

import click

from ppojob_api.problem import printable
from ppojob_cli import run_state
from ppojob_cli.figures import duration, number
from ppojob_cli.run_state import PodState, RunState, StepRecord
from ppojob_cli.view import Kind, PodStates, View


class PlainView(View):
    """Writes lines; notes and errors go to standard error."""

    _turn = ""

    def __enter__(self) -> Self:
        """Tell in one line what earlier runs of this folder have done."""
        if self.state.records:
            self.write(history_line(self.state))
        return self

    def refresh(self, pod_states: PodStates) -> None:
        """See `View`."""
        self.look()
        turn = turn_line(self.state, pod_states() if self.state.is_waiting else ())
        # The last steps and the end may be seen at one look.
        if self.state.is_over:
            self.show_new()
        if turn != self._turn:
            self._turn = turn
            self.write([turn])
        self.show_new()

    def write(self, lines: Iterable[str], kind: Kind = "") -> None:
        """See `View`."""
        # Whoever read may be gone (a closed pipe or terminal); the run goes on.
        with contextlib.suppress(OSError):
            for line in lines:
                click.echo(line, err=kind in {"note", "error"})

    def show_record(self, record: StepRecord, *, again: bool) -> None:
        """See `View`."""
        behind = " (again)" if again else ""
        if record.step > 0:
            left = self.state.remaining_seconds(self.clock())
            self.write([step_line(record, self.state.total_steps, left) + behind])
        if record.validation:
            self.write([validation_line(record) + behind])


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
