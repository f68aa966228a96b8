"""Reward functions as files, rows to score, and what runs below a test."""

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.rewards.records import RewardItem

Source = Callable[..., RewardSpec]
HEAD = "import os, signal, subprocess, sys, time\n"
SIGNATURE = "def score(data_source, solution_str, ground_truth, extra_info, **arguments):\n"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Writes a function's code into a file; answers its settings."""

    def make(code: str, *, seconds: float = 2.0, whole: bool = False, **more: object) -> RewardSpec:
        body = textwrap.dedent(code)
        path = tmp_path / f"reward{len(list(tmp_path.iterdir()))}.py"
        path.write_text(body if whole else HEAD + SIGNATURE + textwrap.indent(body, "    "))
        settings = {"function": "score", "source": {"path": str(path)}, **more}
        return RewardSpec.model_validate(settings | {"timeLimitSeconds": seconds})

    return make


def item(response: str, row: int = 0, **more: object) -> RewardItem:
    return RewardItem(row, "mine", response, "truth", more)  # type: ignore[arg-type]


def descendants() -> list[str]:
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    parents = {}
    for line in listed.stdout.splitlines():
        pid, parent, command = line.split(None, 2)
        parents[int(pid)] = (int(parent), command)
    found, wanted = [], {os.getpid()}
    for pid in sorted(parents):
        if parents[pid][0] in wanted:
            wanted.add(pid)
            found.append(parents[pid][1])
    # Other tests of this process keep servers of their own.
    servers = ("fork-server", "forkserver")
    return [c for c in found if "ppojob_trainer" in c and not any(one in c for one in servers)]


def running(text: str) -> bool:
    listed = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True)
    return any(text in line for line in listed.stdout.splitlines())
