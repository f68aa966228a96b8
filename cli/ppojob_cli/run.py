"""`ppojob run FILE`: a job on this machine, by the same containers as on a cluster."""

import json
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from ppojob_api import contract
from ppojob_api.run_config import RunConfig, resolve
from ppojob_cli.input_error import output_errors
from ppojob_cli.job_file import Given, load_job
from ppojob_cli.local_pods import LocalPods
from ppojob_cli.machine_checks import engine_facts
from ppojob_cli.options import FOLDER, MANIFEST, set_option
from ppojob_cli.preflight import check_run
from ppojob_cli.run_folder import locked, refuse_owned, write_job
from ppojob_cli.run_state import work_of
from ppojob_cli.summary import Ending, finished_summary, keep_model, what_is_next
from ppojob_cli.view import PlainView, View
from ppojob_trainer.checkpoint import branches
from ppojob_trainer.checkpoint.copies import restore
from ppojob_trainer.errors import ConfigError, PPOJobError
from ppojob_trainer.remote_files import fetch

_POLL_SECONDS = 0.25
_tell = partial(click.echo, err=True)


class Interrupts:
    """Counts Ctrl-C: the first requests a stop, the second stops at once.

    SIGTERM and SIGHUP only request it: a closing terminal may send SIGHUP twice, by its shell and
    by the kernel. Under `nohup`, SIGHUP stays ignored.
    """

    def __init__(self) -> None:
        self.count = 0
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGTERM, self._take)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.count = self.count + 1 if number == signal.SIGINT else max(self.count, 1)


@click.command()
@click.argument("file", type=MANIFEST)
@click.option(
    "--output",
    type=FOLDER,
    help="Run folder; default: runs/<name of the job>. The same command resumes from its last "
    "checkpoint.",
)
@set_option
@click.option(
    "--replay",
    type=FOLDER,
    help="Run folder of an earlier run: train on its rows and scores again, step by step, without "
    "engine and reward functions (spec.rollout.replay).",
)
@click.option("--plain", is_flag=True, help="Print plain lines instead of the live view.")
def run(
    file: Path,
    output: Path | None,
    overrides: tuple[str, ...],
    replay: Path | None,
    plain: bool,
) -> None:
    """Run a PPOJob manifest on this machine, or resume its run.

    Exit status: 0 done, 2 the input is wrong and nothing was started, 3 the job failed,
    130 interrupted (the first Ctrl-C finishes the step and writes a checkpoint, the second stops at
    once).
    """
    if replay is not None:
        overrides += (f"spec.rollout.replay={json.dumps(str(replay.resolve()))}",)
    run_job(file, output, overrides, plain=plain, runs="runs")


def run_job(
    file: Path, output: Path | None, overrides: Sequence[Given], *, plain: bool, runs: str
) -> NoReturn:
    """Check everything, then run the job, and exit; the default run folder is in `runs`."""
    try:
        config = resolve(load_job(file, overrides), facts=engine_facts())
        status = _run(config, output or Path(runs) / config.name, plain=plain)
    except PPOJobError as problem:
        click.echo(str(problem), err=True)
        status = problem.exit_status
    sys.exit(status)


def _run(config: RunConfig, folder: Path, *, plain: bool) -> int:
    if finished_summary(folder, config) is None:
        refuse_owned(folder)  # first, because a running job changes it
        restore(config, folder, _tell)
        config = fetch(config, folder, _tell)
        found = check_run(config, folder)
        for line in found.warnings:
            click.echo(f"warning: {line}", err=True)
        if found.errors:
            raise ConfigError(found.errors)
    interrupts = Interrupts()
    with locked(folder):
        summary = finished_summary(folder, config)
        if summary is None:
            with output_errors(folder):
                branches.begin(config, folder, _tell)
                write_job(folder, config)
                keep_model(folder, config)
        view = _open_view(config, folder, plain=plain)  # a branch's earlier steps are not new
        if summary is not None:
            view.already_done(summary)
            return contract.EXIT_DONE
        return _run_pods(config, folder, view, interrupts)


def _run_pods(config: RunConfig, folder: Path, view: View, interrupts: Interrupts) -> int:
    pods = LocalPods(config, folder)
    try:
        with output_errors(folder):
            pods.start()
        with view:
            ending = _follow(pods, folder, view, interrupts)
    finally:
        pods.end()
    view.ended(ending)
    return ending.exit_code


def _follow(pods: LocalPods, folder: Path, view: View, interrupts: Interrupts) -> Ending:
    is_stopping = False
    while True:
        if interrupts.count > 1:
            return stopped_at_once(folder)
        if interrupts.count == 1 and not is_stopping:
            is_stopping = True
            view.note(f"{view.what_is_finished}; Ctrl-C again stops at once")
            pods.ask_to_stop()
        ended = pods.controller.process.poll()
        if ended is not None and is_stopping:
            return _controller_ending(pods, ended, f"it ended with status {ended}")
        dead = tuple(running.pod.name for running in pods.dead())
        if dead:
            return Ending(contract.EXIT_FAILED, f"pod {dead[0]}: it ended", dead)
        status = pods.controller.status()
        view.refresh(lambda: _pod_phases(pods))
        if status is not None and status.phase == "done":
            return _controller_ending(pods, status.exit_code, status.reason)
        time.sleep(_POLL_SECONDS)


def stopped_at_once(folder: Path) -> Ending:
    """Return the ending of a run that was interrupted twice."""
    return Ending(contract.EXIT_INTERRUPTED, f"stopped at once: {what_is_next(folder)}")


def _controller_ending(pods: LocalPods, exit_code: int | None, reason: str) -> Ending:
    if exit_code in {contract.EXIT_DONE, contract.EXIT_INTERRUPTED}:
        return Ending(exit_code)
    if exit_code == contract.EXIT_INVALID:
        return Ending(exit_code, reason)
    lost = tuple(name for name, phase in _pod_phases(pods).items() if phase in {"lost", "not up"})
    return Ending(contract.EXIT_FAILED, reason, lost or (pods.controller.pod.name,))


def _pod_phases(pods: LocalPods) -> dict[str, str]:
    """Return the phase of each pod: `idle`, `starting`, `ready`, `lost`, `done` or `not up`."""
    statuses = {running.pod.name: running.status() for running in pods.pods}
    return {name: status.phase if status else "not up" for name, status in statuses.items()}


def _open_view(config: RunConfig, folder: Path, *, plain: bool) -> View:
    """Open the view for this terminal or pipe, before the pods are started."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Characters that the terminal does not support must not end the run.
            stream.reconfigure(errors="backslashreplace")
    samples, now, work = config.spec.num_examine, time.time(), work_of(config)
    if not plain and sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        if not console.is_dumb_terminal:
            from ppojob_cli.live_view import LiveView

            return LiveView(config.name, folder, console, num_samples=samples, since=now, work=work)
    return PlainView(config.name, folder, num_samples=samples, since=now, work=work)
