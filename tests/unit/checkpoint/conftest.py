"""A server that kills processes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kill_server
import pytest


@pytest.fixture(scope="session")
def run_process() -> Iterator[Callable[..., int]]:
    """Run a script in a process of its own; gives its exit code, negative for a signal."""
    command = [sys.executable, kill_server.__file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(script: str, root: Path, arm: str = "", kill_after: float | None = None) -> int:
        order = {"script": script, "root": str(root), "arm": arm, "kill_after": kill_after}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    with server:
        yield run
        server.stdin.close()
