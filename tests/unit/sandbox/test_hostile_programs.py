import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hostile_table
import pytest
from hostile_table import (
    LIMITS,
    Hostile,
    Surroundings,
    Watched,
    open_sandbox,
    problems,
    read_table,
    surroundings,
)

from ppojob_trainer.sandbox.executor import SandboxRefused
from ppojob_trainer.sandbox.levels import Level, supported_isolation

pytestmark = pytest.mark.processes

TABLE = read_table()
NOBODY = 65534
SYSTEM_PYTHON = Path("/usr/bin/python3")


@pytest.fixture(
    scope="module", params=[Level.RESTRICTED, Level.NAMESPACES], ids=lambda one: one.name
)
def sandbox(request: pytest.FixtureRequest) -> Watched:
    try:
        return open_sandbox(request.param)
    except SandboxRefused as refused:
        pytest.skip(str(refused))


@pytest.fixture(scope="module")
def around() -> Iterator[Surroundings]:
    with surroundings() as found:
        yield found


@pytest.mark.parametrize("hostile", TABLE, ids=lambda one: one.id)
def test_a_hostile_program_gets_nothing(hostile: Hostile, sandbox: Watched, around: Surroundings):
    assert problems(hostile, sandbox, around) == []


def test_the_table_is_long_enough() -> None:
    kinds = Counter(one.kind.split()[0] for one in TABLE)
    assert kinds["escape"] >= 40
    assert kinds["network"] >= 15
    assert kinds["hack"] >= 25
    assert kinds["bomb"] >= 20


@pytest.mark.parametrize(
    "name",
    ["escape: read a file", "escape: make a file", "escape: fork", "network: TCP to this machine"],
)
def test_without_walls_they_get_through(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Were it not so, the table would try nothing."""
    hostile = next(one for one in TABLE if one.id == name)
    sandbox = Watched(
        LIMITS, least=Level.NONE, isolation=supported_isolation().without_any("by the test")
    )
    with surroundings() as around:
        assert "it got out" in problems(hostile, sandbox, around)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="the other tests are an ordinary user's already")
@pytest.mark.parametrize(
    "level", [pytest.param("RESTRICTED", marks=pytest.mark.long), "NAMESPACES"]
)
def test_an_ordinary_user_has_the_same_walls(level: str) -> None:
    """The restricted one is that of a pod, where cluster/test_sandbox_in_a_pod.py tries it."""
    if not (SYSTEM_PYTHON.exists() and os.stat(hostile_table.__file__).st_mode & 0o004):
        pytest.skip("nobody else can run an interpreter, or read this file")
    done = subprocess.run(
        [SYSTEM_PYTHON, "-B", hostile_table.__file__, level],
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not done.stderr
    told = json.loads(done.stdout)
    assert told.pop("level").startswith(f"sandbox level {level.lower()}")
    assert told == {"tried": len(TABLE), "user": NOBODY, "problems": {}}
