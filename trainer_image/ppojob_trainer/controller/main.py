"""`ppojob_trainer controller`: runs the training loop of a job and reports how it ended."""

import contextlib
import faulthandler
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from ppojob_api import contract, validation
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import METRICS_FILE, SUMMARY_FILE
from ppojob_trainer import durable
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.progress import Reporter, TrainingReport
from ppojob_trainer.controller.status_writer import JobResource, StatusWriter
from ppojob_trainer.controller.wiring import Wiring
from ppojob_trainer.errors import Fenced, Interrupted, PPOJobError
from ppojob_trainer.heartbeat_pipe import HeartbeatPipe
from ppojob_trainer.pod_environment import PodEnvironment, read_pod_environment
from ppojob_trainer.stop_signal import StopRequest

_log = logging.getLogger(__name__)
SUMMARY_POINT = durable.point("summary", *durable.FILE_ACTS)


def run_controller() -> int:
    """Run the job to its end and return the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = HeartbeatPipe(int(os.environ[contract.ENV_HEARTBEAT]))
    heartbeat.start()
    stop = StopRequest()
    environment = read_pod_environment()
    with _reporter(environment) as reporter:
        return _drive(environment, reporter, stop, heartbeat)


@contextlib.contextmanager
def _reporter(environment: PodEnvironment) -> Iterator[Reporter]:
    if environment.api_access is None:
        yield Reporter(environment.run_folder)
        return
    config = environment.config
    resource = JobResource(
        environment.api_access, namespace=config.namespace, name=config.name, uid=config.uid
    )
    writer = StatusWriter(resource.write)
    try:
        yield Reporter(environment.run_folder, TrainingReport(writer.submit))
    finally:
        writer.close()


def _drive(
    environment: PodEnvironment, reporter: Reporter, stop: StopRequest, heartbeat: HeartbeatPipe
) -> int:
    try:
        environment = environment.with_local_paths()
        # The summary of an earlier run in this folder.
        (environment.run_folder / SUMMARY_FILE).unlink(missing_ok=True)
        for problem in validation.warnings(environment.config.job()):
            _log.warning("%s", problem)
        with contextlib.ExitStack() as stack:
            loop = Wiring(environment, reporter, stop, heartbeat, stack).loop
            heartbeat.report_ready()
            progress = loop.fit()
            is_done = loop.is_done(progress)
            phase = "Succeeded" if is_done else "Interrupted"
            _write_summary(environment.run_folder, environment.config, progress, phase)
            reporter.report(phase=phase, step=progress.step, stage="", message="")
            return contract.EXIT_DONE if is_done else contract.EXIT_INTERRUPTED
    except Interrupted as stopped:
        _log.info("%s", stopped)
        reporter.report(phase="Interrupted", stage="", message="")
        return stopped.exit_status
    except Fenced as problem:
        _log.error("%s", problem)  # the successor reports the status
        return problem.exit_status
    except PPOJobError as problem:
        return _fail(str(problem), problem.exit_status, reporter, heartbeat)
    except Exception as problem:
        _log.exception("the controller failed")
        message = f"{type(problem).__name__}: {problem}"
        return _fail(message, contract.EXIT_FAILED, reporter, heartbeat)


def _fail(message: str, status: int, reporter: Reporter, heartbeat: HeartbeatPipe) -> int:
    _log.error("%s", message)
    reporter.report(phase="Failed", message=message)
    heartbeat.report_error(message)
    return status


def _write_summary(folder: Path, config: RunConfig, progress: Progress, phase: str) -> None:
    """Write `summary.json`: how a run ended, with the first and the last validation."""
    lines = map(json.loads, durable.read_lines(folder / METRICS_FILE))
    prefixes = ("val-core/", "val/")
    found = ({k: v for k, v in line.items() if k.startswith(prefixes)} for line in lines)
    validations = [metrics for metrics in found if metrics]
    summary = {
        "phase": phase,
        "name": config.name,
        "uid": config.uid,
        "config_sha256": config.digest(),
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "validation": {
            "first": validations[0] if len(validations) > 1 else {},
            "last": validations[-1] if validations else {},
        },
    }
    text = json.dumps(summary, indent=2, sort_keys=True) + "\n"
    durable.write_file(folder / SUMMARY_FILE, text.encode(), SUMMARY_POINT)
