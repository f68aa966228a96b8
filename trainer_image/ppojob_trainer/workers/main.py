"""`ppojob_trainer rank`: the process of one rank in one attempt, and its profiler traces."""

import faulthandler
import gc
import logging
import os
import pkgutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from ppojob_api import contract
from ppojob_api.run_layout import PROFILE_FOLDER
from ppojob_api.well_known import RoleName
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.heartbeat_pipe import HeartbeatPipe
from ppojob_trainer.pod_environment import (
    PodEnvironment,
    RankEnvironment,
    read_pod_environment,
    read_rank_environment,
)
from ppojob_trainer.rpc.keys import read_key_ring
from ppojob_trainer.rpc.server import RpcServer
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)


_WORKERS: Final[dict[RoleName, str]] = {
    "actorRollout": "actor_rollout:open_actor_rollout_worker",
    "rollout": "rollout:open_rollout_worker",
    "reference": "model_stages:open_standalone_model",
    "critic": "model_stages:open_standalone_model",
    "rewardModel": "reward_model:open_reward_model_worker",
    "reward": "reward:open_reward_worker",
    "tools": "tools:open_tools_worker",
    "retriever": "retriever:open_retriever_worker",
    "judge": "judge:open_judge_worker",
}
"""The context manager that opens the worker of a role; imported late, as imports are heavy."""

_WITH_MODELS: Final = ("actorRollout", "rollout", "reference", "critic", "rewardModel")

Tracer = Callable[[RequestId], AbstractContextManager[None]]


def run_rank() -> int:
    """Serve requests until killed; return the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = HeartbeatPipe(int(os.environ[contract.ENV_HEARTBEAT]))
    heartbeat.start()
    try:
        environment = read_pod_environment().with_local_paths()
        rank = read_rank_environment()
        keys = read_key_ring(environment.keys, environment.role)
        gc.disable()  # imports make little garbage, and looking for it takes a second
        open_worker = pkgutil.resolve_name(f"{__package__}.{_WORKERS[environment.role]}")
        gc.freeze()
        gc.enable()
        with open_worker(environment, rank, keys) as worker:
            port = contract.PORT_FIRST_RANK + rank.local_rank
            server = RpcServer(environment.address, port, keys, worker.routes(), rank.attempt)
            server.start()
            heartbeat.report_ready()
            server.work(tracer(environment, rank))
    except PPOJobError as problem:
        _log.error("%s", problem)
        heartbeat.report_error(str(problem))
        return problem.exit_status
    except SystemExit as problem:  # the worker cannot continue
        _log.error("%s", problem)
        heartbeat.report_error(str(problem))
    except Exception as problem:
        _log.exception("the rank failed")
        heartbeat.report_error(f"{type(problem).__name__}: {problem}")
        return contract.EXIT_FAILED
    return contract.EXIT_DONE


def tracer(environment: PodEnvironment, rank: RankEnvironment) -> Tracer:
    """Return the context that traces work in the steps of `spec.profile`, with torch.profiler.

    Each call has a file. A trace that cannot be written is logged, and training continues.
    """
    spec, role = environment.config.spec.profile, environment.role
    if spec is None or role not in _WITH_MODELS or rank.rank not in spec.ranks:
        return lambda _: nullcontext()

    # Imported late: roles without models load no torch.
    from torch.profiler import profile

    @contextmanager
    def traced(work: RequestId) -> Iterator[None]:
        if work.step not in spec.steps:
            yield
            return
        with profile(
            record_shapes="shapes" in spec.contents,
            with_stack="stack" in spec.contents,
            profile_memory="memory" in spec.contents,
        ) as trace:
            yield
        stage = work.stage.replace("/", "-")
        folder = environment.run_folder / PROFILE_FOLDER / f"step-{work.step:06d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{role}-{rank.rank:05d}-{stage}-{work.index}.json.gz"
            trace.export_chrome_trace(str(folder / name))
        except (OSError, RuntimeError) as error:
            _log.warning("spec.profile: %s is not written: %s", folder, error)

    return traced
