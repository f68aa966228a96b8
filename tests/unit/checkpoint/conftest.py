"""What the checkpoint tests share: small commits, and a server that kills processes."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

KILL_SERVER = Path(__file__).with_name("kill_server.py")


@pytest.fixture(scope="session")
def scripts() -> ModuleType:
    """kill_server.py as a module: the makers of commits."""
    spec = importlib.util.spec_from_file_location("kill_server", KILL_SERVER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_process() -> Iterator[Callable[..., int]]:
    """Run a script in a process of its own; gives its exit code, negative for a signal."""
    server = subprocess.Popen(
        [sys.executable, KILL_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(script: str, root: Path, arm: str = "", kill_after: float | None = None) -> int:
        assert server.stdin is not None
        assert server.stdout is not None
        order = {"script": script, "root": str(root), "arm": arm, "kill_after": kill_after}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    with server:
        yield run
        assert server.stdin is not None
        server.stdin.close()
