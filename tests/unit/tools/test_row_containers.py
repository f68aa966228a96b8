"""The tool `bash` in a container of its own for each row (`agent.containers`)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import container_engine
import pytest
from bash_rows import Row

from ppojob_api import contract
from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_trainer.containers.local import (
    LocalContainers,
    _machine,
    delete_leftovers,
    working_command,
)
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes

ENVIRONMENT = """
class Basket:
    def add(self):
        return "added"

    def score(self):
        return 0.25
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the containers of the stand-in."""
    folder = tmp_path_factory.mktemp("containers")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(
            contract.ENV_CONTAINER_COMMAND, f"{sys.executable} {container_engine.__file__}"
        )
        patched.setenv("CONTAINERS", str(folder))
        yield folder


def agent(file: Path) -> AgentSpec:
    file.write_text(ENVIRONMENT)
    source = {"path": str(file), "function": "Basket.add"}
    add = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    return AgentSpec.model_validate(
        {
            "tools": [{**add, "source": source}, {"name": "bash"}],
            "containers": {"image": "python:3.12", "cpu": "500m", "memory": "256Mi"},
        }
    )


@pytest.fixture(scope="module")
def pool(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolPool]:
    spec = agent(tmp_path_factory.mktemp("code") / "basket.py")
    assert spec.containers is not None
    start = LocalContainers(spec.containers).open
    sandbox = SandboxSpec(time_limit_seconds=3.0)
    with ToolPool(spec, sandbox=sandbox, open_container=start) as pool:
        yield pool
    for container in engine.iterdir():
        container_engine.end(container)


def test_a_row_is_tested_in_its_container(pool: ToolPool) -> None:
    text = 'it\'s "fine" $HOME\n'
    files = {"/tmp/notes/task.md": text}
    row = Row(pool, 0, folder="/usr", files=files, setup="echo ready > /tmp/state",
              test="cat /tmp/notes/task.md", test_output=text)  # fmt: skip
    assert row.run("pwd; cat /tmp/state; cat nothing") == (
        "/usr\nready\ncat: nothing: No such file or directory\n[exit status 1]"
    )
    assert (row.end().reward, row.end().failure) == (1.25, "")  # with that of the basket


def test_no_process_outlives_its_command(pool: ToolPool) -> None:
    row = Row(pool, 1)
    assert row.run("setsid sleep 97 & echo $BASH_VERSION | cut -d. -f1") in {"4", "5"}
    assert "sleep 97" not in row.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert row.run("kill -9 -1").endswith("[exit status 137]")
    assert row.run("echo there") == "there"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sleep 97", "Error: it took too long."),
        ("cat /dev/zero | tr '\\0' x", "Error: it wrote too much."),
    ],
)
def test_a_limit_ends_the_processes(pool: ToolPool, command: str, told: str) -> None:
    row = Row(pool, 2)
    assert row.run(command).endswith(told)
    assert row.run("ls /proc | grep -c '^[0-9]'") < "9"


def test_a_lost_container_is_made_again(pool: ToolPool, engine: Path) -> None:
    row = Row(pool, 3, setup="echo zero > state")
    before = {one.name for one in engine.iterdir()}
    row.run("echo one >> state")
    (name,) = {one.name for one in engine.iterdir()} - before
    container_engine.end(engine / name)
    assert row.run("echo two >> state; cat state") == "zero\none\ntwo"


@pytest.mark.parametrize(
    ("number", "created", "told"),
    [
        (10, {"image": "no-such-image"}, "ended without an answer"),
        (11, {"image": ""}, "ended without an answer"),
        (12, {"setup": "exit 3"}, "RuntimeError: setup of the workspace: [exit status 3]"),
        (13, {"folder": "/not/there"}, "cd: can't cd to /not/there"),
    ],
)
def test_what_cannot_start_is_an_answer(
    pool: ToolPool, number: int, created: dict[str, Any], told: str
) -> None:
    row = Row(pool, number, **created)
    assert told in row.run("ls")


def test_a_row_without_a_test_starts_no_container_for_its_score(
    pool: ToolPool, engine: Path
) -> None:
    before = list(engine.iterdir())
    assert Row(pool, 20).end().reward == 0.25
    assert list(engine.iterdir()) == before


def test_containers_of_an_ended_process_are_deleted(engine: Path) -> None:
    names = [
        f"ppojob-{_machine()}-{owner}-0123456789abcdef" for owner in (999_999_999, os.getpid())
    ]
    for name in names:
        given = ("run", "--name", name, "--entrypoint", "sh", "image", "-c", "sleep 97")
        subprocess.run((sys.executable, container_engine.__file__, *given), check=True)
    delete_leftovers()
    assert [(engine / name).exists() for name in names] == [False, True]
    container_engine.end(engine / names[1])


def test_a_machine_without_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_CONTAINER_COMMAND, "")
    monkeypatch.setenv("PATH", "/nothing")
    assert working_command() == "docker and podman: not installed"
    monkeypatch.setenv(
        contract.ENV_CONTAINER_COMMAND, f"{sys.executable} -c 'import sys; sys.exit(\"no daemon\")'"
    )
    assert working_command() == "no daemon"
