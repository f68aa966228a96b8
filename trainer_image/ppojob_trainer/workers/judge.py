"""Judge worker: runs vLLM's OpenAI-compatible server of the LLM judge as a child process.

It answers no requests of the controller: reward pods call the server by HTTP
(`workers.judge_router`). When the server ends, this rank ends with the reason, and is restarted
like the rank of any role.
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
    """Keeps the server; the controller only checks that it lives."""

    def routes(self) -> list[Route]:
        """The methods of this role."""
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
    told = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [sys.executable, "-m", "ppojob_trainer.rollout.vllm_server", *told, *flags]


@contextmanager
def open_judge_worker(
    environment: PodEnvironment, _rank: RankEnvironment, _keys: KeyRing
) -> Iterator[JudgeWorker]:
    """Open the worker once its server answers; it ends with the block.

    Raises:
        SystemExit: in the main thread at any time, when the server has ended.
        ConfigError: likewise, if vLLM has refused to start.
    """
    spec = environment.config.spec
    judge, gpus = spec.judge, spec.roles.judge.gpus_per_replica
    assert judge is not None, "the role is there for its model"
    command = server_command(judge, address=environment.address, gpus=gpus)
    with (
        _short_name(environment.scratch) as sockets,
        Program(command, {**os.environ, **QUIET, "VLLM_RPC_BASE_PATH": sockets}) as server,
    ):

        def look(*_: object) -> None:
            if how := server.ended():
                raise reason_to_end(judge, how)

        before = signal.signal(signal.SIGCHLD, look)
        try:
            while not _answers(f"http://{environment.address}:{contract.PORT_JUDGE}/health"):
                look()  # it may have ended before the line above
                time.sleep(_POLL_SECONDS)
            yield JudgeWorker()
        finally:
            signal.signal(signal.SIGCHLD, before)


@contextmanager
def _short_name(folder: Path) -> Iterator[str]:
    """Return a short folder for sockets: the kernel allows 107 bytes, vLLM's path may be longer."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def reason_to_end(judge: JudgeSpec, how: str) -> BaseException:
    """Return the error that ends the rank after its server; a ConfigError is not retried."""
    if how == f"exit status {contract.EXIT_INVALID}":
        return ConfigError(
            f"spec.judge: got {shown(judge.path)}: vLLM does not serve it so, and the log of this "
            "pod says why; another model, dtype, maxTokens or spec.roles.judge"
        )
    return SystemExit(f"the server of spec.judge ended by {how}; the log of this pod says why")


def _answers(url: str) -> bool:
    try:
        with _DIRECTLY.open(url, timeout=_HTTP_SECONDS):
            return True
    except (OSError, HTTPException):
        return False
