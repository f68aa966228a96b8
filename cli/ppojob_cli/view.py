"""What a person sees while a job runs: a live table on a terminal, plain lines elsewhere."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import click
import msgspec

from ppojob_api.run_config import RunConfig
from ppojob_trainer.controller.progress import STATUS_FILE, TrainingStatus
from ppojob_trainer.rpc.methods import PodStatus


class View(Protocol):
    """Shows a run."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""
        ...

    def refresh(self) -> None:
        """Look at the run folder and show what is new."""
        ...

    def note(self, text: str) -> None:
        """Show a line that is about the run as a whole."""
        ...

    def outcome(self, status: PodStatus) -> None:
        """Show how the controller ended."""
        ...

    def already_done(self, summary: dict[str, Any]) -> None:
        """Say that there is nothing left to do."""
        ...


class PlainView:
    """A line for each new step and stage of life.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown = ""
        self._offset = 0

    def __enter__(self) -> Self:
        """Start behind what earlier runs in this folder have written."""
        metrics = self._folder / "metrics.jsonl"
        self._offset = metrics.stat().st_size if metrics.exists() else 0
        (self._folder / STATUS_FILE).unlink(missing_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held."""

    def refresh(self) -> None:
        """See `View`."""
        try:
            status = msgspec.json.decode(
                (self._folder / STATUS_FILE).read_bytes(), type=TrainingStatus
            )
        except (OSError, msgspec.DecodeError):
            return
        line = f"{status.phase}" + (f": {status.message}" if status.message else "")
        if line != self._shown:
            self._shown = line
            click.echo(line)
        for record in self._new_records():
            click.echo(step_line(record, status.total_steps))

    def note(self, text: str) -> None:
        """See `View`."""
        click.echo(text, err=True)

    def outcome(self, status: PodStatus) -> None:
        """See `View`."""
        self.refresh()
        if status.exit_code:
            click.echo(status.reason, err=True)

    def already_done(self, summary: dict[str, Any]) -> None:
        """See `View`."""
        click.echo(f"done already: {summary['steps']} steps; see {self._folder}")

    def _new_records(self) -> list[dict[str, float]]:
        path = self._folder / "metrics.jsonl"
        if not path.exists():
            return []
        if path.stat().st_size < self._offset:
            self._offset = path.stat().st_size
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        return [json.loads(line) for line in data[:end].splitlines()]


def step_line(record: dict[str, float], total_steps: int) -> str:
    """One line about one step."""
    parts = [f"step {record['step']}/{total_steps}"]
    for name, key, form in (
        ("reward", "critic/score/mean", ".3f"),
        ("length", "response_length/mean", ".1f"),
        ("grad", "actor/grad_norm", ".2f"),
        ("tokens/s", "perf/throughput", ".0f"),
        ("seconds", "timing_s/step", ".1f"),
    ):
        if record.get(key) is not None:
            parts.append(f"{name} {record[key]:{form}}")
    parts += [f"{key} {value:.3f}" for key, value in record.items() if key.startswith("val-core/")]
    return "  ".join(parts)


def open_view(config: RunConfig, folder: Path, *, plain: bool) -> View:
    """The view for where the output goes."""
    del config, plain
    return PlainView(folder)
