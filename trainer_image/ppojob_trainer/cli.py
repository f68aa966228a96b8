"""Commands of `python -m ppojob_trainer`; each imports its heavy dependencies itself.

The environment identifies the process (docs/contract.md), so commands take no arguments.
`supervise` is PID 1 of a pod and starts `controller` or `rank`. On one machine, fork servers with
preloaded libraries start them.
"""

import logging
import os
import sys

from ppojob_api import contract
from ppojob_trainer import failpoints, stop_signal
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.heartbeat_pipe import die_with_parent

_SERVERS = ("fork-server", "vllm-fork-server", "supervisor-server")
COMMANDS = ("supervise", "controller", "rank", *_SERVERS)


def main(arguments: list[str]) -> int:
    """Run one command; return the exit status."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m ppojob_trainer {'|'.join(COMMANDS)}\n")
        return contract.EXIT_INVALID
    command = arguments[0]
    if parent := os.environ.get(contract.ENV_DIE_WITH_PARENT):
        die_with_parent(int(parent))  # before any slow import
    if command in _SERVERS:
        return _serve_forks(command)
    role = os.environ.get(contract.ENV_ROLE, "?")
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s {role} {command} %(levelname)s %(message)s",
    )
    try:
        failpoints.arm()
        return _run(command)
    except PPOJobError as problem:
        logging.getLogger(__name__).error("%s", problem)
        return problem.exit_status


def _serve_forks(server: str) -> int:
    """Run a fork server; in each fork, run the requested command."""
    from ppojob_trainer.fork_server import serve

    try:
        command = serve(server)
    except PPOJobError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_status
    return main([command])


def _run(command: str) -> int:
    if command == "supervise":
        stop_signal.block_sigterm()  # a container runtime does not start it with the signal blocked
        from ppojob_trainer.supervisor.main import supervise

        return supervise()
    if command == "controller":
        from ppojob_trainer.controller.main import run_controller

        return run_controller()
    from ppojob_trainer.workers.main import run_rank

    return run_rank()
