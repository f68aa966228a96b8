"""`ppojob_trainer supervise`: main process of a pod's container."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from ppojob_api import contract
from ppojob_api.remote_files import is_url
from ppojob_api.run_config import RunConfig
from ppojob_trainer import remote_files, stop_signal
from ppojob_trainer.checkpoint import branches
from ppojob_trainer.checkpoint.copies import restore
from ppojob_trainer.errors import Interrupted
from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.models.weight_files import BadHeader
from ppojob_trainer.pod_environment import PodEnvironment, read_pod_environment
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.rpc.identity import PodIdentity, code_digest, config_digest
from ppojob_trainer.rpc.keys import read_key_ring
from ppojob_trainer.rpc.messages.pods import PodStatus
from ppojob_trainer.rpc.methods import IDENTITY, START, STATUS
from ppojob_trainer.rpc.server import Route, RpcServer
from ppojob_trainer.stop_signal import StopRequest
from ppojob_trainer.supervisor.forked_process import rank_variables
from ppojob_trainer.supervisor.health import health_server
from ppojob_trainer.supervisor.pod import Pod, PodPlan

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.05


def plan_of(environment: PodEnvironment) -> PodPlan:
    """Return the processes of this pod."""
    timeouts = environment.config.spec.timeouts
    if environment.role == "controller":
        ranks, first_rank, threads, gpus = 1, 0, 1, 0
    else:
        role = environment.config.topology.role(environment.role)
        ranks, threads, gpus = role.ranks_per_pod, role.threads_per_rank, role.gpus_per_pod
        first_rank = environment.pod_index * ranks
    return PodPlan(
        role=environment.role,
        pod=environment.pod_index,
        ranks=ranks,
        first_rank=first_rank,
        silent_seconds=float(timeouts.liveness_seconds),
        startup_seconds=float(timeouts.startup_seconds),
        restarts_without_progress=environment.config.spec.recovery.restarts_without_progress,
        environment={**os.environ, **rank_variables(threads), "TMPDIR": str(environment.scratch)},
        has_gpus=0 < gpus == ranks,
        fork_server=os.environ.get(contract.ENV_FORK_SERVER),
    )


def supervise() -> int:
    """Run the pod until it is asked to stop; return the exit status of the container."""
    environment = read_pod_environment()
    pod = Pod(plan_of(environment))
    ends_by_sigterm = pod.is_controller or environment.parent_pid is None
    stop = StopRequest(signal.SIGTERM if ends_by_sigterm else stop_signal.END_OF_ROLE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    identity = IdentityReader(environment)
    # A daemon thread: storage that hangs must not delay the end of the pod.
    threading.Thread(target=identity.read_models, name="identity", daemon=True).start()
    server = RpcServer(
        environment.address,
        contract.PORT_SUPERVISOR,
        read_key_ring(environment.keys, environment.role),
        [
            Route(STATUS, lambda _: pod.status()),
            Route(IDENTITY, lambda _: identity.current),
            Route(START, lambda request: pod.request_attempt(request.attempt)),
        ],
        attempt=None,
    )
    name = environment.config.name
    health = health_server(environment.address, contract.PORT_HEALTH, name, pod.status)
    server.start()
    health.start()
    files = start_fetch(environment)
    try:
        while not stop():
            if files.done():
                files.result()
                pod.tick()
            time.sleep(_TICK_SECONDS)
        if not files.done():
            raise Interrupted("stopped while files were fetched; the next start continues")
        if pod.is_controller:
            _wait_for_controller(pod)
    finally:
        pod.kill()
        health.close()
        server.close()
    return exit_status(pod.status())


def start_fetch(environment: PodEnvironment) -> Future[RunConfig]:
    """Start to fetch the files behind the job's URLs into the run's volume, for all pods.

    Before that, a missing run folder is restored from its copies, and a branched run gets its first
    checkpoint. On a cluster only the controller's pod does this, so only it needs credentials;
    `ppojob run` does it itself.
    """
    files: Future[RunConfig] = Future()
    if environment.role != "controller" or environment.parent_pid is not None:
        files.set_result(environment.config)
        return files

    def run() -> None:
        try:
            restore(environment.config, environment.run_folder)
            branches.begin(environment.config, environment.run_folder)
            files.set_result(remote_files.fetch(environment.config, environment.run_folder))
        except BaseException as problem:
            files.set_exception(problem)

    # A daemon thread: a store that hangs must not delay the end of the pod.
    threading.Thread(target=run, name="files", daemon=True).start()
    return files


def exit_status(status: PodStatus) -> int:
    """Return the container's exit status: that of the controller, or failure if it was killed."""
    if status.exit_code is not None:
        return status.exit_code
    return contract.EXIT_FAILED if status.role == "controller" else contract.EXIT_DONE


def _wait_for_controller(pod: Pod) -> None:
    """Ask the controller to finish its step, save a checkpoint and exit; wait for its end."""
    _log.info("stop requested; the controller finishes its step")
    pod.request_stop()
    while pod.status().phase in {"starting", "ready"}:
        pod.tick()
        time.sleep(_TICK_SECONDS)


class IdentityReader:
    """Computes the pod's identity, as far as known `current`; model folders are read in a thread.

    `read` returns the digest of a folder.
    """

    def __init__(
        self, environment: PodEnvironment, read: Callable[[Path], str] = fingerprint
    ) -> None:
        self._folders = sorted(_model_folders(environment))
        self._read = read
        self.current = PodIdentity(
            code_digest(),
            config_digest(environment.config),
            models=None,
            native_bfloat16=has_native_bfloat16(),
        )

    def read_models(self) -> None:
        models = {}
        for path in self._folders:
            try:
                models[path] = self._read(Path(path))
            except (OSError, BadHeader) as problem:  # reported when it is loaded
                _log.warning("%s: not compared with that of other pods: %s", path, problem)
        self.current = msgspec.structs.replace(self.current, models=models)


def _model_folders(environment: PodEnvironment) -> set[str]:
    """Return the local folders of models and tokenizers that the ranks of this pod read."""
    spec = environment.config.spec
    here = environment.config.topology.living_in(environment.role)
    found: set[str | None] = set()
    if here & {"actorRollout", "rollout", "reference"}:
        found |= {spec.model.path, spec.model.lora.path if spec.model.lora else None}
    if here & {"actorRollout", "rollout"}:
        found |= {spec.model.tokenizer_path}
    if "reference" in here:
        found |= {*spec.reference_paths}
    if "critic" in here and spec.critic is not None:
        found |= {*spec.critic_paths, spec.critic.lora.path if spec.critic.lora else None}
    if "rewardModel" in here and spec.reward_model is not None:
        found |= {spec.reward_model.path, spec.reward_model.tokenizer_path}
    if "tools" in here and spec.agent is not None and spec.agent.agent_loops:
        found |= {spec.model.path, spec.model.tokenizer_path}
    if "judge" in here and spec.judge is not None:
        found |= {spec.judge.path}
    # Fetched files are on the run's volume, so all pods read the same.
    return {path for path in found if path is not None and not is_url(path)}
