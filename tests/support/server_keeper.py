"""Starts the fork servers of jobs, and ends them once no test worker uses them.

Run: `python server_keeper.py FOLDER`. It returns when the servers are ready; a fork of it stays.
"""

import fcntl
import os
import signal
import sys
from pathlib import Path

import run_server
import tiny_jobs

from ppojob_cli.local_pods import start_fork_servers


def main(folder: Path) -> None:
    ready, told = os.pipe()
    if os.fork():
        os.close(told)
        sys.exit(os.read(ready, 1) != b"y")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers end by it
    inherited = tiny_jobs.environment()
    servers = start_fork_servers(folder / "server", folder / "log", inherited, vllm=True)
    servers.append(run_server.start(folder / "runs", inherited))
    os.write(told, b"y")
    with folder.with_suffix(".users").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        folder.with_suffix(".made").unlink()
        for server in servers:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
