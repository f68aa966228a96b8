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
from ppojob_trainer.workers.profiles import watch

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
"""Opens the worker of a role: a context manager that yields an object with `routes()`.

Imported by name, since each role has heavy imports of its own.
"""


def run_rank() -> int:
    """Serve until killed, and return the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = HeartbeatPipe(int(os.environ[contract.ENV_HEARTBEAT]))
    heartbeat.start()
    try:
        environment = read_pod_environment().with_local_paths()
        rank = read_rank_environment()
        keys = read_key_ring(environment.keys, environment.role)
        gc.disable()  # among what is loaded there is no garbage worth a second of looking for it
        open_worker = pkgutil.resolve_name(f"{__package__}.{_WORKERS[environment.role]}")
        gc.freeze()
        gc.enable()
        with open_worker(environment, rank, keys) as worker:
            port = contract.PORT_FIRST_RANK + rank.local_rank
            server = RpcServer(environment.address, port, keys, worker.routes(), rank.attempt)
            server.start()
            heartbeat.report_ready()
            server.work(watch(environment, rank))
    except PPOJobError as problem:
        _log.error("%s", problem)
        heartbeat.report_error(str(problem))
        return problem.exit_status
    except SystemExit as problem:  # it can do no further work, and says why
        _log.error("%s", problem)
        heartbeat.report_error(str(problem))
    except Exception as problem:
        _log.exception("the rank failed")
        heartbeat.report_error(f"{type(problem).__name__}: {problem}")
        return contract.EXIT_FAILED
    return contract.EXIT_DONE
