"""`ppojob_trainer rank`: the process of one rank in one attempt."""

import faulthandler
import gc
import logging
import os
import pkgutil
import signal
from typing import Final

from ppojob_api import contract
from ppojob_api.well_known import RoleName
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.heartbeat_pipe import HeartbeatPipe
from ppojob_trainer.pod_environment import read_pod_environment, read_rank_environment
from ppojob_trainer.rpc.keys import read_key_ring
from ppojob_trainer.rpc.server import RpcServer
from ppojob_trainer.workers.profiles import tracer

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


def run_rank() -> int:
    """Serve requests until killed; return the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = HeartbeatPipe(int(os.environ[contract.ENV_HEARTBEAT]))
    heartbeat.start()
    try:
        environment = read_pod_environment().located()
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
            heartbeat.tell_ready()
            server.work(tracer(environment, rank))
    except PPOJobError as problem:
        _log.error("%s", problem)
        heartbeat.tell_error(str(problem))
        return problem.exit_status
    except SystemExit as problem:  # the worker cannot continue
        _log.error("%s", problem)
        heartbeat.tell_error(str(problem))
    except Exception as problem:
        _log.exception("the rank failed")
        heartbeat.tell_error(f"{type(problem).__name__}: {problem}")
        return contract.EXIT_FAILED
    return contract.EXIT_DONE
