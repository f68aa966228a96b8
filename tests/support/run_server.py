"""Forks commands of `ppojob` from a process that has loaded them, as ranks are (docs/adr/0024).

`ppojob run` loads for a second of a core, and the tests of jobs start it by the hundred. Run as a
script this is the server; its listening socket is standard input.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ppojob_api import contract
from ppojob_trainer import fork_server
from ppojob_trainer.heartbeat_pipe import die_with_parent
from ppojob_trainer.supervisor.forked_process import ForkClient, Process, listen, rank_variables

FOLDER = "PPOJOB_RUN_SERVER"
"""Names the folder of the server that commands of tests are forked by."""

_NAME = "run-server"


def start(folder: Path, inherited: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start the server; it forks commands whose environment is `inherited`."""
    of_libraries = {**rank_variables(threads=1), contract.ENV_DIE_WITH_PARENT: str(os.getpid())}
    with listen(folder, inherited) as listener:
        script = [sys.executable, __file__]
        return subprocess.Popen(script, env={**inherited, **of_libraries}, stdin=listener.fileno())


def run(
    arguments: Sequence[str | Path], environment: Mapping[str, str], said: IO[bytes]
) -> Process:
    """Run `ppojob` with what it says in a file: forked, or by itself in another environment."""
    words = list(map(str, arguments))
    server, servers_of_ranks = environment.get(FOLDER), environment.get(contract.ENV_FORK_SERVER)
    if server and servers_of_ranks:
        with contextlib.suppress(OSError):
            outputs = (said.fileno(), said.fileno())
            forked = ForkClient(Path(server)).fork(json.dumps(words), environment, outputs=outputs)
            if forked.is_forked_within(60.0):
                return forked
            forked.send_signal(signal.SIGKILL)
    command = [sys.executable, "-m", "ppojob_cli", *words]
    return subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)


def main() -> None:
    die_with_parent(int(os.environ[contract.ENV_DIE_WITH_PARENT]))
    import tiny_jobs

    from ppojob_api.validation import validate

    fork_server.LOADED[_NAME] = ("ppojob_cli.main", "ppojob_cli.run")
    # The rules of jobs are read once as well.
    assert not isinstance(validate(tiny_jobs.make_manifest(Path("/tiny"))), list)
    words = json.loads(fork_server.serve(_NAME))
    del os.environ[contract.ENV_DIE_WITH_PARENT]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["ppojob", *words]
    from ppojob_cli.main import main as ppojob

    ppojob(prog_name="ppojob")


if __name__ == "__main__":
    main()
