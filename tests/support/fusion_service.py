"""A small service with SandboxFusion's interface, which does run what it is asked for.

Fixtures: a folder of tests that wants them names them in its conftest.py.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Service(ThreadingHTTPServer):
    """Runs what it is asked for, unless it was told what to answer."""

    asked: list[dict[str, Any]]
    answers: list[object]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/run_code"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        told = self.server.answers.pop(0) if self.server.answers else ran(asked)
        status, body = (told, {}) if isinstance(told, int) else (200, told)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def ran(asked: dict[str, Any]) -> dict[str, object]:
    """The answer of a SandboxFusion that runs a program."""
    command = [sys.executable, "-c", asked["code"]]
    limit = asked["run_timeout"]
    result: dict[str, object] = {"status": "Finished", "execution_time": 0.1}
    try:
        done = subprocess.run(
            command, input=asked["stdin"], capture_output=True, text=True, timeout=limit
        )
        result |= {"return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    except subprocess.TimeoutExpired:
        result |= {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}
    is_well = result["status"] == "Finished" and result["return_code"] == 0
    status = "Success" if is_well else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": result}


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service(("127.0.0.1", 0), Handler)
    server.asked, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
