"""A small service with SandboxFusion's interface, which does run what it is asked for.

Fixtures: a folder of tests that wants them names them in its conftest.py.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from answering_service import Answer, services


@dataclass
class Service:
    """Runs what it is asked for, unless it was told what to answer: a status, or a body."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)

    def answer(self, asked: dict[str, Any]) -> Answer:
        self.asked.append(asked)
        told = self.answers.pop(0) if self.answers else ran(asked)
        return (told, {}) if isinstance(told, int) else (200, told)


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
    made = Service()
    with services("/run_code") as start:
        made.url = start(made.answer).url
        yield made
