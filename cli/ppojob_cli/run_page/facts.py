"""Facts of a run from its folder: configuration, progress and events.

Anything may be missing, incomplete or of an earlier version: then the page shows less.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ppojob_api import manifest
from ppojob_api.problem import counted, printable
from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, JOB_FILE, METRICS_FILE
from ppojob_cli.figures import duration
from ppojob_cli.input_error import InputError
from ppojob_cli.job_file import load_job
from ppojob_cli.plan import role_lines, unit
from ppojob_cli.run_folder import is_left
from ppojob_cli.run_state import RunReader, RunState, work_of
from ppojob_trainer.checkpoint import journal
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.trackers.messages import flat

_MOST_MARKS: Final = 50
_MOST_LINES: Final = 20
_LINE_CHARACTERS: Final = 300

_STARTED: Final = "the job was started again"


@dataclass(frozen=True, slots=True)
class Mark:
    """An event of a run after a step; `time` is in Unix seconds."""

    step: int
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class PageRun:
    """One run of a page."""

    label: str  # unique on the page
    folder: Path
    state: RunState
    # Properties of the run, as pairs of a name and its lines.
    facts: Sequence[tuple[str, Sequence[str]]]
    settings: Mapping[str, str]  # fields of the job with a value, as text by path
    config: str  # the fields as YAML; empty if they cannot be read
    marks: Sequence[Mark]  # the last restarts and rewinds, in order


def read_runs(folders: Sequence[Path]) -> list[PageRun]:
    """Read the runs in folders; an `InputError` names all that are no run folders."""
    wrong = [
        f"RUN: got {folder}: neither {JOB_FILE} nor {METRICS_FILE} is in it; a run folder"
        for folder in folders
        if not (folder / JOB_FILE).is_file() and not (folder / METRICS_FILE).is_file()
    ]
    if wrong:
        raise InputError("\n".join(wrong))
    names = [folder.resolve().name for folder in folders]
    is_clear = len(set(names)) == len(names)
    labels = names if is_clear else list(map(str, folders))
    return [_read(folder, label) for folder, label in zip(folders, labels, strict=True)]


def _read(folder: Path, label: str) -> PageRun:
    state = RunReader(folder).read()
    config, note = _config(folder)
    events, trouble = _events(folder)
    versions = {e.code_version for e in events if isinstance(e, journal.ControllerStarted)}
    facts = [
        ("State", list(_state_lines(state, config, folder))),
        *([] if config is None else _job_facts(config)),
        ("When", list(_time_lines(state, events))),
        ("Version", sorted(versions)),
        ("Not read", [line for line in (note, trouble) if line]),
    ]
    # Pods may have keys in their environment.
    spec = {}
    if config is not None:
        spec = config.spec.model_dump(mode="json", exclude={"pods"}, exclude_none=True)
    return PageRun(
        label=label,
        folder=folder,
        state=state,
        facts=[(word, _listed(lines)) for word, lines in facts if lines],
        settings=flat(spec),
        config=manifest.to_yaml(spec) if spec else "",
        marks=[
            replace(mark, text=printable(mark.text, _LINE_CHARACTERS))
            for mark in [*_marks(events)][-_MOST_MARKS:]
        ],
    )


def _listed(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return [printable(line, _LINE_CHARACTERS) for line in lines[:_MOST_LINES]] + more


def _config(folder: Path) -> tuple[RunConfig | None, str]:
    try:
        return resolve(load_job(folder / JOB_FILE)), ""
    except PPOJobError as problem:
        return None, str(problem).splitlines()[0]


def _events(folder: Path) -> tuple[list[journal.Event], str]:
    try:
        return journal.Journal(folder / CHECKPOINTS_FOLDER / journal.JOURNAL_NAME).read(), ""
    except (PPOJobError, OSError) as problem:
        return [], str(problem)


def _state_lines(state: RunState, config: RunConfig | None, folder: Path) -> Iterator[str]:
    status = state.status
    phase = status.phase
    if config is not None and phase == "Training":
        phase = work_of(config)
    if not state.is_over and is_left(folder):
        phase = f"Stopped at once while {phase.lower()}"
    done, total = state.done_steps, status.total_steps
    steps = f"{done} of {counted(total, 'step')}" if total else counted(done, "step")
    yield f"{phase}, {steps} done"
    if status.message:
        yield status.message.splitlines()[0]
    yield from status.notices


def _job_facts(config: RunConfig) -> list[tuple[str, list[str]]]:
    spec = config.spec
    algorithm = spec.algorithm
    shape = counted(algorithm.prompts_per_step, unit(spec))
    if not algorithm.given:
        shape += f" x {counted(algorithm.samples_per_prompt, 'sample')}"
    files = [str(file.path) for file in spec.data.train]
    demonstrations = [f"demonstrations: {file.path}" for file in spec.data.demonstrations]
    held_out = [f"held out: {file.path}" for file in spec.data.validation]
    return [
        ("Job", [f"{config.namespace}/{config.name}"]),
        ("Model", [str(spec.model.path)]),
        ("Algorithm", [f"{algorithm.type}, {shape} a step"]),
        ("Learning rate", [f"{spec.optimizer.learning_rate:g}, {spec.optimizer.schedule}"]),
        ("Seed", [str(spec.seed)]),
        ("Data", [*files, *demonstrations, *held_out]),
        ("Hardware", list(role_lines(config))),
    ]


def _time_lines(state: RunState, events: Iterable[journal.Event]) -> Iterator[str]:
    began = next((event.time for event in events if isinstance(event, journal.RunBegan)), None)
    if began is not None:
        yield f"began {date(began)}"
    last = max([state.status.since, *(record.time for record in state.records[-1:])])
    if last:
        yield f"last update {date(last)}"
    trained = [record.values for record in state.steps]
    if trained:
        seconds = sum(values.get("timing_s/step", 0.0) for values in trained)
        tokens = sum(values.get("perf/total_num_tokens", 0.0) for values in trained)
        yield f"{duration(seconds)} in valid steps, {tokens:,.0f} tokens"


def date(unix_seconds: float) -> str:
    """Format a time in UTC, to the minute."""
    return f"{datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _marks(events: Iterable[journal.Event]) -> Iterator[Mark]:
    """Yield restarts, rewinds and damaged checkpoints."""
    done, started = 0, dict[str, float]()
    has_begun = False
    for event in events:
        match event:
            case journal.ControllerStarted() if event.attempt > 1:
                started.setdefault("controller", event.time)
            case journal.AttemptStarted() if event.attempt > 1:
                started.setdefault(event.role, event.time)
            case journal.CheckpointRefused():
                text = f"the checkpoint of step {event.step} is damaged: {event.file}"
                yield Mark(done, event.time, f"{text}: {event.reason}")
            case journal.Rewound():
                if has_begun:
                    why = _STARTED if event.reason == "start" else event.reason
                    text = f"back from step {done} to step {event.to_step}: {why}"
                    yield Mark(done, event.time, text)
                done = event.to_step
            case journal.StepDone():
                yield from _restart(started, done)
                done, started, has_begun = event.progress.step, {}, True
    yield from _restart(started, done)


def _restart(started: Mapping[str, float], step: int) -> Iterator[Mark]:
    """Yield the restarts after a step as one mark, at the time of the first."""
    if started:
        yield Mark(step, min(started.values()), f"started again: {', '.join(started)}")
