"""`ppojob_trainer rank`: one rank of one epoch, from its first line to its end."""

import faulthandler
import logging
import os
import signal

from ppojob_api import contract
from ppojob_api.well_known import RoleName
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.heartbeat_pipe import HeartbeatPipe
from ppojob_trainer.pod_environment import (
    read_pod_environment,
    read_rank_environment,
)
from ppojob_trainer.rpc.keys import read_key_ring
from ppojob_trainer.rpc.server import RpcServer
from ppojob_trainer.workers.worker import WorkerFactory

_log = logging.getLogger(__name__)


def _factory(role: RoleName) -> WorkerFactory:
    """What builds the worker of a role; each role imports its own heavy parts, late."""
    if role == "reward":
        from ppojob_trainer.workers.reward import open_reward_worker

        return open_reward_worker
    if role == "tools":
        from ppojob_trainer.workers.tools import open_tools_worker

        return open_tools_worker
    if role == "retriever":
        from ppojob_trainer.workers.retriever import open_retriever_worker

        return open_retriever_worker
    if role == "actorRollout":
        from ppojob_trainer.workers.actor_rollout_start import open_actor_rollout_worker

        return open_actor_rollout_worker
    if role == "rollout":
        from ppojob_trainer.workers.rollout import open_rollout_worker

        return open_rollout_worker
    from ppojob_trainer.workers.standalone_models import STANDALONE_MODELS

    return STANDALONE_MODELS[role]


def run_rank() -> int:
    """Serve until killed; answers the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = HeartbeatPipe(int(os.environ[contract.ENV_HEARTBEAT]))
    heartbeat.start()
    try:
        environment = read_pod_environment()
        rank = read_rank_environment()
        keys = read_key_ring(environment.keys, environment.role)
        with _factory(environment.role)(environment, rank, keys) as worker:
            port = contract.PORT_FIRST_RANK + rank.local_rank
            server = RpcServer(environment.address, port, keys, worker.routes(), rank.epoch)
            server.start()
            heartbeat.tell_ready()
            server.work()
    except PPOJobError as problem:
        _log.error("%s", problem)
        heartbeat.tell_error(str(problem))
        return problem.exit_status
    except SystemExit as problem:  # it can do no further work, and says why
        _log.error("%s", problem)
        heartbeat.tell_error(str(problem))
    except Exception as problem:
        _log.exception("the rank failed")
        heartbeat.tell_error(f"{type(problem).__name__}: {problem}")
        return contract.EXIT_FAILED
    return contract.EXIT_DONE
