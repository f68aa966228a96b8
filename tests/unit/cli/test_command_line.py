import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ppojob_cli import main
from ppojob_cli.help_page import page

OF_OTHERS = (
    "torch",
    "msgspec",
    "zmq",
    "pyarrow",
    "numpy",
    "huggingface_hub",
    "prometheus_client",
    "kubernetes",
    "tree_sitter",
)
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({OF_OTHERS!r}))  # what is None there cannot be imported
from ppojob_cli.main import main
main(prog_name="ppojob")
"""
VERL = Path(__file__).parent / "verl" / "scripts"
EXAMPLES = Path(__file__).parents[3] / "examples"
TRAINER = "make setup in a clone of PPOJob"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_help_parts_what_runs_here_from_what_asks_a_cluster() -> None:
    here, cluster = page().split("```")[1].split("Commands ")[1:]
    assert here.startswith("that run on this machine:\n  run ")
    assert cluster.startswith("about a job on a cluster, also as kubectl ppojob:\n  status ")
    assert "\n  metrics " in cluster
    assert "\n  metrics " not in here


def test_the_list_has_the_first_line_of_the_help_of_each_command() -> None:
    context = click.Context(main.main)
    found = {word: main.main.get_command(context, word) for word in main.COMMANDS}
    first = {word: command and command.get_short_help_str(100) for word, command in found.items()}
    assert first == {word: text for word, (_, text) in main.COMMANDS.items()}


@pytest.mark.parametrize("group", [[], ["data"]])
def test_no_command_is_told_in_part_on_a_terminal_of_80_columns(group: list[str]) -> None:
    said = CliRunner().invoke(main.main, [*group, "--help"], terminal_width=80).output
    usage, *lines = said.splitlines()
    assert "COMMAND" in usage
    assert [line for line in lines if line.endswith("...")] == []


def test_an_unknown_command_is_told_those_that_there_are() -> None:
    said = CliRunner().invoke(main.main, ["plam"]).output
    assert (
        f'COMMAND: got "plam": there is no such command; one of {", ".join(main.COMMANDS)}' in said
    )


def test_the_plugin_calls_itself_as_its_user_does(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/usr/bin/kubectl-ppojob", "status", "--help"])
    with pytest.raises(SystemExit) as ended:
        main.plugin()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl ppojob status [OPTIONS] NAME")


@pytest.mark.processes
def test_validate_goes_without_them_offline() -> None:
    manifest = str(EXAMPLES / "addition-grpo.yaml")
    done = call("validate", manifest)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the command validate needs it; --offline to judge the manifest alone" in done.stderr
    assert call("validate", "--offline", manifest).returncode == 0


@pytest.mark.processes
def test_yaml_of_verl_is_read_without_them() -> None:
    done = call("from-verl", str(VERL / "config.yaml"))
    assert "maxResponseTokens: 100" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("run job.yaml --plain", "msgspec"),
        ("run --help", "msgspec"),
        ("data addition --output addition", "pyarrow"),
        ("model owner/name --output model", "huggingface_hub"),
        ("index corpus.jsonl --output index", "msgspec"),
        ("retrieve index", "msgspec"),
        ("export run --output export", "msgspec"),
        (f"from-verl {VERL}/grpo.sh", "tree_sitter"),
    ],
)
def test_what_to_install(command: str, package: str) -> None:
    done = call(*command.split())
    name = command.split()[0]
    line = f"{package}: got nothing: the command {name} needs it; {TRAINER}\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, line, "")


@pytest.mark.processes
def test_a_run_without_checkpoints_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    program = PROGRAM.replace(repr(OF_OTHERS), "['torch']")
    command = [sys.executable, "-c", program, "export", str(tmp_path), "--output", "export"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"RUN: got {tmp_path}: it holds no checkpoint; ")


@pytest.mark.processes
def test_what_to_install_for_a_cluster() -> None:
    line = (
        "kubernetes: got nothing: the command status needs it; pip install '.[kubectl]' in a clone "
        "of PPOJob\n"
    )
    done = call("status", "sum")
    assert (done.returncode, done.stderr, done.stdout) == (2, line, "")
    assert "explain [OPTIONS] NAME" in call("explain", "--help").stdout


@pytest.mark.processes
def test_help_lists_all_commands_and_loads_none() -> None:
    program = PROGRAM.replace(repr(OF_OTHERS), repr((*OF_OTHERS, "pydantic", "rich")))
    done = subprocess.run([sys.executable, "-c", program, "-h"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run        Run a PPOJob manifest" in done.stdout
