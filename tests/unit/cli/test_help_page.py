"""What `--help` and its page say; kubectl's user reads of kubectl."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from ppojob_cli import main
from ppojob_cli.help_page import page


def test_every_command_has_a_section() -> None:
    sections = {line for line in page().splitlines() if line.startswith("## ")}
    for word, (module, _) in main.COMMANDS.items():
        program = "kubectl ppojob" if "cluster" in module else "ppojob"
        assert f"## {program} {word}" in sections


def test_help_parts_what_runs_here_from_what_asks_a_cluster() -> None:
    here, cluster = page().split("```")[1].split("Commands ")[1:]
    assert here.startswith("that run on this machine:\n  run ")
    assert cluster.startswith("about a job on a cluster, also as kubectl ppojob:\n  status ")
    assert "\n  metrics " in cluster
    assert "\n  metrics " not in here


def test_an_unknown_command_is_told_those_that_there_are() -> None:
    said = CliRunner().invoke(main.main, ["plam"]).output
    assert (
        f'COMMAND: got "plam": there is no such command; one of {", ".join(main.COMMANDS)}' in said
    )


def test_the_plugin_calls_itself_as_its_user_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/kubectl-ppojob", "status", "--help"])
    with pytest.raises(SystemExit) as ended:
        main.plugin()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl ppojob status [OPTIONS] NAME")


@pytest.mark.processes
def test_help_needs_no_client_library() -> None:
    """`--help` is answered at once, and also where the library is not installed."""
    program = (
        "import sys; sys.modules['kubernetes'] = None; from ppojob_cli.main import main;"
        "main(['explain', '--help'], standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "explain [OPTIONS] NAME" in done.stdout
