"""The tool `bash`: a workspace for each row, and a test of it at the row's end."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bash_rows import Row

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes


def agent(**config: Any) -> AgentSpec:
    return AgentSpec.model_validate({"tools": [{"name": "bash", "config": config}]})


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolPool]:
    repositories = tmp_path_factory.mktemp("repositories")
    (repositories / "sum").mkdir()
    (repositories / "sum" / "sum.py").write_text("def add(a, b):\n    return a - b\n")
    with ToolPool(agent(folder=str(repositories)), processes=2) as pool:
        yield pool


TESTED: Mapping[str, Any] = {
    "folder": "sum",
    "files": {"notes/task.md": "Mend add."},
    "setup": "echo ready > state",
    "test": "python3 -B test_sum.py",
    "test_files": {"test_sum.py": "import sum\nassert sum.add(2, 3) == 5\n"},
}


def test_a_row_is_tested_by_files_that_it_has_not_seen(pool: ToolPool) -> None:
    row, idle = Row(pool, 0, **TESTED), Row(pool, 1, **TESTED)
    assert row.run("cat state notes/task.md; ls; cat nothing") == (
        "ready\nMend add.notes\nstate\nsum.py\n"
        "cat: nothing: No such file or directory\n[exit status 1]"
    )
    assert row.run("sed -i s/-/+/ sum.py") == ""
    assert (row.end().reward, row.end().failure) == (1.0, "")
    assert (idle.end().reward, idle.end().failure) == (0.0, "")


def test_a_lost_workspace_is_made_again(pool: ToolPool, tmp_path: Path) -> None:
    row = Row(pool, 2, **TESTED)
    row.run("sed -i s/-/+/ sum.py; echo more >> state")
    for child in list(pool._children._children):
        child.kill()
    assert row.run("cat state") == "ready\nmore"
    assert row.end().reward == 1.0


def test_the_output_of_a_test_may_count(pool: ToolPool) -> None:
    created = {"folder": "sum", "test": "python3 -c 'import sum; print(sum.add(2, 3))'"}
    for output, score in (("-1", 1.0), ("5", 0.0)):
        assert Row(pool, 5, **created, test_output=output).end().reward == score


@pytest.mark.parametrize("folder", ["..", "/etc", "nothing"])
def test_a_row_gets_no_other_folder(pool: ToolPool, folder: str) -> None:
    text = Row(pool, 6, folder=folder).run("ls")
    assert text.startswith(
        f"Error: bash failed: ValueError: folder: got {folder}: there is no such"
    )


@pytest.mark.parametrize("command", ["x" * 200_000, "a\0b"])
def test_a_command_that_no_shell_takes(pool: ToolPool, command: str) -> None:
    text = Row(pool, 7, folder="sum").run(command)
    assert text == "Error: a command has at most 100000 bytes, and no NUL."


def test_a_row_without_a_test_has_no_point(pool: ToolPool) -> None:
    assert Row(pool, 3, folder="sum").end().reward == 0.0


def test_a_setup_that_fails_is_an_answer(pool: ToolPool) -> None:
    row = Row(pool, 4, setup="echo no; exit 2")
    text = "Error: bash failed: RuntimeError: setup of the workspace: no [exit status 2]"
    assert row.run("ls").replace("\\n", " ") == text
    assert row.end().failure == "raised"


def test_settings_are_checked_at_the_start() -> None:
    for config, why in (
        ({"folders": "/"}, "config: got .*folders.*; any of folder, workspace_mib, readable"),
        ({"workspace_mib": 0}, "config: got .*>= 1"),
        ({"folder": ""}, 'config: got "": there is no such path'),
        ({"readable": ["usr"]}, 'config: got "usr": there is no such path'),
        ({"readable": ["/not/here"]}, 'config: got "/not/here": there is no such path'),
    ):
        with pytest.raises(ConfigError, match=why):
            ToolPool(agent(**config))
    service = SandboxSpec(url="http://localhost:1/run_code")
    with pytest.raises(ConfigError, match=r"got bash with spec\.sandbox\.url: .*no workspaces"):
        ToolPool(agent(), sandbox=service)
