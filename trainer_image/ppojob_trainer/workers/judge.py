"""Judge worker: runs vLLM's OpenAI-compatible server of the LLM judge as a child process.

Reward pods call the server by HTTP (`workers.judge_router`); the controller sends no requests. If
the server ends, this rank ends with the reason, and is restarted like any rank.
"""

import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Final

from ppojob_api import contract
from ppojob_api.problem import shown
from ppojob_api.v1alpha1.rollout import JudgeSpec
from ppojob_trainer.children.program import Program
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.server import Route

_POLL_SECONDS: Final = 0.2
_HTTP_SECONDS: Final = 5.0
QUIET: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores of a machine are shared with other ranks
}
_DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class JudgeWorker:
    """Worker of the server; the controller only checks its liveness."""

    def routes(self) -> list[Route]:
        return []


def server_command(judge: JudgeSpec, *, address: str, gpus: int) -> list[str]:
    """Return the server's command line for the judge of a resolved job."""
    given: dict[str, object] = {
        "model": judge.path,
        "host": address,
        "port": contract.PORT_JUDGE,
        "dtype": judge.dtype,
        "max-model-len": judge.max_tokens,
        "tensor-parallel-size": max(1, gpus),
        "seed": 0,
    }
    cache = judge.kv_cache_gib
    if gpus:
        given["gpu-memory-utilization"] = judge.gpu_memory_share
    given["kv-cache-memory-bytes"] = cache and int(cache * 2**30)
    flags = ["--disable-uvicorn-access-log", *([] if gpus else ["--enforce-eager"])]
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [sys.executable, "-m", "ppojob_trainer.rollout.vllm_server", *options, *flags]


@contextmanager
def open_judge_worker(
    environment: PodEnvironment, _rank: RankEnvironment, _keys: KeyRing
) -> Iterator[JudgeWorker]:
    """Open the worker once its server answers; the server ends with the block.

    If the server ends, SystemExit or ConfigError is raised in the main thread at any time.
    """
    spec = environment.config.spec
    judge, gpus = spec.judge, spec.roles.judge.gpus_per_replica
    assert judge is not None, "the role has a judge"
    command = server_command(judge, address=environment.address, gpus=gpus)
    with (
        _short_path(environment.scratch) as sockets,
        Program(command, {**os.environ, **QUIET, "VLLM_RPC_BASE_PATH": sockets}) as server,
    ):

        def check_server(*_: object) -> None:
            if status := server.ended():
                raise exit_error(judge, status)

        before = signal.signal(signal.SIGCHLD, check_server)
        try:
            while not _is_healthy(f"http://{environment.address}:{contract.PORT_JUDGE}/health"):
                check_server()  # it may have ended before the signal handler was set
                time.sleep(_POLL_SECONDS)
            yield JudgeWorker()
        finally:
            signal.signal(signal.SIGCHLD, before)


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a short path of a folder for sockets: the kernel allows 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def exit_error(judge: JudgeSpec, status: str) -> BaseException:
    """Return the error that ends the rank after its server; a ConfigError is not retried."""
    if status == f"exit status {contract.EXIT_INVALID}":
        return ConfigError(
            f"spec.judge: got {shown(judge.path)}: vLLM does not serve it so, and the log of this "
            "pod says why; another model, dtype, maxTokens or spec.roles.judge"
        )
    return SystemExit(f"the server of spec.judge ended by {status}; the log of this pod says why")


def _is_healthy(url: str) -> bool:
    try:
        with _DIRECTLY.open(url, timeout=_HTTP_SECONDS):
            return True
    except (OSError, HTTPException):
        return False
