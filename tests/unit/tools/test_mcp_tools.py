import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import golden_lines
import pytest
from click.testing import CliRunner
from golden_lines import assert_lines, read_lines
from tool_calls import ask, problems_of, turn_of

from ppojob_api.manifest import read_bytes
from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_cli.main import main
from ppojob_trainer.data.media.images import unpacked
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.messages.agents import ToolCall
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes

PROGRAM = str(Path(golden_lines.__file__).with_name("mcp_server.py"))
EXPECTED = read_lines(Path(__file__).parent / "bad_servers.txt")
STDIO = [sys.executable, PROGRAM, "stdio"]
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers over HTTP, with these variables, and gives their URLs."""
    started = []

    def start(**variables: str) -> str:
        process = subprocess.Popen(
            [sys.executable, PROGRAM, "http"],
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", **variables},
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def printed(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["tools", *arguments])
    assert done.exit_code == 0, done.output
    read = read_bytes(done.stdout.encode(), "agent.yaml").value
    assert isinstance(read, dict)
    return read["agent"]


def test_a_server_over_http_from_its_address_to_its_answers(serve: Serve) -> None:
    agent = printed("--mcp", serve())
    names = [one["name"] for one in agent["tools"]]
    assert names == ["add", "fails", "waits", "town_people", "draw", "ends"]
    assert agent["tools"][3]["source"] == {"mcpServer": "mcp", "tool": "town.people"}
    agent["tools"][2]["timeLimitSeconds"] = 1.0
    with ToolPool(AgentSpec.model_validate(agent)) as pool:
        assert ask(pool, "add", '{"a": 3, "b": 4}').text == "7"
        assert ask(pool, "add", '{"a": "3", "b": 4}').failure == "arguments"
        failed = ask(pool, "fails", '{"why": "no reason"}')
        assert failed.failure == "raised"
        assert failed.text.startswith("Error: fails failed: McpFailed: ")
        assert "no reason" in failed.text
        found = ask(pool, "town_people", '{"town": "Ulm"}')
        assert found.failure == ""
        assert '"Ulm": 1' in found.text
        drawn = ask(pool, "draw", images=[])
        assert (drawn.text, unpacked(drawn.images)) == ("", [b"P1 1 1 0"])
        slow = ask(pool, "waits", '{"seconds": 30}')
        assert (slow.failure, slow.seconds < 20) == ("timeout", True)
        assert ask(pool, "add", '{"a": 1, "b": 1}').text == "2", "a new child goes on"


def test_a_command_is_started_for_each_call() -> None:
    agent = printed("--mcp", " ".join(STDIO), "--name", "sums")
    assert agent["mcpServers"] == [{"name": "sums", "command": STDIO}]
    with ToolPool(AgentSpec.model_validate(agent)) as pool:
        for _ in range(2):  # it counts its calls
            assert '"Ulm": 1' in ask(pool, "town_people", '{"town": "Ulm"}').text


def row_asks(pool: ToolPool, row: int, before: list[ToolCall], name: str, arguments: str) -> str:
    """The text for a call in the session of a row; it is added to the calls `before` the next."""
    call = ToolCall(name, arguments)
    (answer,) = pool.start(turn_of(row, [call], before=before)).result().answers
    before.append(call)
    return answer.text


@pytest.mark.parametrize("place", ["command", "url"])
def test_calls_of_a_row_share_a_session(serve: Serve, place: str) -> None:
    agent = printed("--mcp", serve() if place == "url" else " ".join(STDIO))
    agent["mcpServers"][0]["session"] = "row"
    ulm = "town_people", '{"town": "Ulm"}'
    with ToolPool(AgentSpec.model_validate(agent)) as pool:
        one, other = list[ToolCall](), list[ToolCall]()
        assert '"Ulm": 1' in row_asks(pool, 1, one, *ulm)
        assert "why, says" in row_asks(pool, 1, one, "fails", '{"why": "why"}')
        assert '"Ulm": 2' in row_asks(pool, 1, one, *ulm)
        # A server over HTTP is one for all rows; a command is one for each.
        assert f'"Ulm": {3 if place == "url" else 1}' in row_asks(pool, 2, other, *ulm)
        pool.start(turn_of(1, [])).result()
        assert '"Ulm":' in row_asks(pool, 2, other, *ulm)


def test_a_session_whose_server_has_ended_begins_again(tmp_path: Path) -> None:
    agent = printed("--mcp", " ".join(STDIO))
    agent["mcpServers"][0]["session"] = "row"
    ulm, before = ("town_people", '{"town": "Ulm"}'), list[ToolCall]()
    with ToolPool(AgentSpec.model_validate(agent)) as pool:
        assert '"Ulm": 1' in row_asks(pool, 1, before, *ulm)
        ended = row_asks(pool, 1, before, "ends", f'{{"unless": "{tmp_path / "ended"}"}}')
        assert ended.startswith("Error: ends failed: McpFailed: ")
        assert '"Ulm": 2' in row_asks(pool, 1, before, *ulm)
        pool.start(turn_of(1, [])).result()


def test_the_key_is_sent_and_never_told(serve: Serve, monkeypatch) -> None:
    url = serve(KEY="canary")
    monkeypatch.setenv("SUMS_KEY", "canary\n")
    agent = AgentSpec.model_validate(printed("--mcp", url, "--key-variable", "SUMS_KEY"))
    assert agent.mcp_servers[0].key_variable == "SUMS_KEY"
    with ToolPool(agent, variables=("SUMS_KEY",)) as pool:
        assert ask(pool, "add", '{"a": 3, "b": 4}').text == "7"
        failed = ask(pool, "fails", '{"why": "none"}')
        assert "none, says ***" in failed.text
    monkeypatch.setenv("SUMS_KEY", "other")
    with pytest.raises(ConfigError) as refused:
        ToolPool(agent, variables=("SUMS_KEY",))
    (line,) = refused.value.problems
    assert line.startswith(f'spec.agent.mcpServers[0]: got "{url}": the server does not list')
    assert "other" not in line


def test_what_a_server_has_become_is_refused_by_name(serve: Serve) -> None:
    agent = printed("--mcp", serve())
    agent["tools"].append({**agent["tools"][0], "name": "gone"})
    agent["mcpServers"][0]["url"] = serve(CHANGED="1")
    assert_lines(problems_of(AgentSpec.model_validate(agent)), EXPECTED["changed"])


def test_servers_that_are_away(tmp_path: Path) -> None:
    tool = {"description": "d", "parameters": {"type": "object"}}
    agent = {
        "mcpServers": [
            {"name": "nobody", "url": "http://127.0.0.1:9/mcp"},
            {"name": "absent", "command": [str(tmp_path / "absent")]},
            {"name": "ends", "command": [sys.executable, "-c", "print(1)"]},
            {"name": "bare", "url": "http:///mcp"},
        ],
        "tools": [
            {**tool, "name": name, "source": {"mcpServer": name}}
            for name in ("nobody", "absent", "ends", "bare")
        ],
    }
    found = problems_of(AgentSpec.model_validate(agent), tmp_path)
    assert_lines([line.replace(sys.executable, "PYTHON") for line in found], EXPECTED["away"])


@pytest.mark.parametrize(
    ("arguments", "case"),
    [
        ([], "neither"),
        (["a.py", "--mcp", "http://a/"], "both"),
        (["--mcp", " "], "no command"),
        (["--mcp", "http://127.0.0.1:9/mcp"], "nothing to print"),
    ],
)
def test_what_cannot_be_printed(arguments: list[str], case: str) -> None:
    done = CliRunner().invoke(main, ["tools", *arguments])
    assert done.exit_code == 2
    assert_lines(done.output.splitlines(), EXPECTED[case])
