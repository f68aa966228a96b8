"""`ppojob_trainer controller`: runs the loop of a job, and says how it ended."""

import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Iterator

from ppojob_api import contract, validation
from ppojob_trainer.controller.job_resource import JobResource
from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.status_writer import StatusWriter
from ppojob_trainer.controller.summary import forget_summary, write_summary
from ppojob_trainer.controller.training_report import TrainingReport
from ppojob_trainer.controller.wiring import build_loop
from ppojob_trainer.errors import Fenced, Interrupted, PPOJobError
from ppojob_trainer.heartbeat_pipe import HeartbeatPipe
from ppojob_trainer.pod_environment import PodEnvironment, read_pod_environment
from ppojob_trainer.stop_signal import StopRequest

_log = logging.getLogger(__name__)


def run_controller() -> int:
    """Drive the job to its end; answers the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = HeartbeatPipe(int(os.environ[contract.ENV_HEARTBEAT]))
    heartbeat.start()
    stop = StopRequest()
    environment = read_pod_environment()
    with _reporter(environment) as reporter:
        return _drive(environment, reporter, stop, heartbeat)


@contextlib.contextmanager
def _reporter(environment: PodEnvironment) -> Iterator[Reporter]:
    """Whoever tells of the job; on a cluster its resource has the last word when this ends."""
    if environment.api_access is None:
        yield Reporter(environment.run_folder)
        return
    config = environment.config
    resource = JobResource(
        environment.api_access, namespace=config.namespace, name=config.name, uid=config.uid
    )
    writer = StatusWriter(resource.write)
    try:
        yield Reporter(environment.run_folder, TrainingReport(writer.offer))
    finally:
        writer.close()


def _drive(
    environment: PodEnvironment, reporter: Reporter, stop: StopRequest, heartbeat: HeartbeatPipe
) -> int:
    try:
        forget_summary(environment.run_folder)
        for problem in validation.warnings(environment.config.job()):
            _log.warning("%s", problem)
        with contextlib.ExitStack() as stack:
            loop = build_loop(environment, reporter, stop, heartbeat, stack)
            heartbeat.tell_ready()
            progress = loop.fit()
            is_done = loop.is_done(progress)
            phase = "Succeeded" if is_done else "Interrupted"
            write_summary(environment.run_folder, environment.config, progress, phase)
            reporter.report(phase=phase, step=progress.step, stage="", message="")
            return contract.EXIT_DONE if is_done else contract.EXIT_INTERRUPTED
    except Interrupted as stopped:
        _log.info("%s", stopped)
        reporter.report(phase="Interrupted", stage="", message="")
        return stopped.exit_status
    except Fenced as problem:
        _log.error("%s", problem)  # the status is its successor's to tell
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
    heartbeat.tell_error(message)
    return status
