"""A job's status as labelled rows, for terminals and for pipes. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ppojob_api.problem import printable
from ppojob_api.v1alpha1.status import FailureRecord, PPOJobStatus, TrainingStatus
from ppojob_cli.figures import duration, number
from ppojob_cli.panel import LABEL_WIDTH, labelled, progress, progress_words, titled
from ppojob_operator.conditions import from_rfc3339
from ppojob_operator.state import Job, Time

_FAILURES_SHOWN: Final = 3

_STYLES: Final = {
    "True": "green",
    "False": "yellow",
    "Unknown": "yellow",
    "configuration": "red",
    "application": "red",
    "transient": "yellow",
}


_HEADS: Final = {
    "roles": ("role", "ready", "restarts"),
    "conditions": ("condition", "status", "reason", "since"),
}
Block = tuple[str, Sequence[tuple[str, ...]]]
"""A label of at most ten letters, and rows of cells, all of the same length."""


def plain_lines(job: Job, now: Time) -> Iterator[str]:
    """Format the status as lines."""
    yield printable(f"{job.name}: {job.status.phase}")
    training = job.status.training
    if training is not None:
        words = progress_words(training.step, training.total_steps or 0, training.eta or "")
        yield f"  {'step':<{LABEL_WIDTH}}  {'  '.join(words)}"
    for label, rows in blocks(job, now):
        for index, line in enumerate(_aligned(_cells(label, rows))):
            yield f"  {label if index == 0 else '':<{LABEL_WIDTH}}  {line}".rstrip()


def drawing(job: Job, now: Time, console: Console) -> RenderableType:
    """Draw the status as a panel."""
    sections: list[RenderableType] = []
    training = job.status.training
    if training is not None:
        sections.append(progress(training.step, training.total_steps or 0, training.eta or ""))
    sections += [labelled(label, _table(label, rows)) for label, rows in blocks(job, now)]
    return titled(job.name, job.status.phase, sections, console)


def blocks(job: Job, now: Time) -> Iterator[Block]:
    """Yield the parts of the status, the most important first."""
    status = job.status
    if status.reason:
        yield "why", [(_words(status),)]
    if status.training is not None:
        yield from _training(status.training)
    if status.roles:
        yield "roles", [(r.name, f"{r.ready}/{r.replicas}", str(r.restarts)) for r in status.roles]
    conditions = [
        (one.type, one.status, one.reason, _ago(one.last_transition_time, now))
        for one in status.conditions
    ]
    failures = [
        (one.pod, f"step {one.step}", one.kind, _ago(one.time, now), _words(one))
        for one in reversed(status.failures[-_FAILURES_SHOWN:])
    ]
    if conditions:
        yield "conditions", conditions
    if failures:
        yield "failures", failures


def _training(training: TrainingStatus) -> Iterator[Block]:
    figures = {
        "reward": training.reward,
        "KL": training.kl,
        "entropy": training.entropy,
        "length": training.response_tokens,
        "tokens/s": training.tokens_per_second,
    }
    cells = [f"{name} {number(value)}" for name, value in figures.items() if value is not None]
    if training.stage:
        cells.append(training.stage.lower())
    if cells:
        yield "now", [("  ".join(cells),)]
    if training.validation is not None:
        yield "validation", [(number(training.validation),)]
    if training.last_checkpoint_step is not None:
        yield "checkpoint", [(f"step {training.last_checkpoint_step}",)]


def _ago(time: str, now: Time) -> str:
    return f"{duration((now - from_rfc3339(time)).total_seconds())} ago"


def _words(status: PPOJobStatus | FailureRecord) -> str:
    return f"{status.reason}: {status.message}" if status.message else status.reason


def _cells(label: str, rows: Sequence[tuple[str, ...]]) -> list[Sequence[str]]:
    heads: list[Sequence[str]] = [_HEADS[label]] if label in _HEADS else []
    return heads + [[printable(cell) for cell in row] for row in rows]


def _aligned(rows: list[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(f"{cell:<{width}}" for cell, width in cells).rstrip()


def _table(label: str, rows: Sequence[tuple[str, ...]]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for index, row in enumerate(_cells(label, rows)):
        is_head = index == 0 and label in _HEADS
        cells = [Text(cell, style="dim" if is_head else _STYLES.get(cell, "")) for cell in row]
        table.add_row(*cells)
    return table
