"""The command line where only a part of it is installed: one line instead of a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

OF_OTHERS = (
    "torch",
    "msgspec",
    "zmq",
    "pyarrow",
    "numpy",
    "huggingface_hub",
    "prometheus_client",
    "kubernetes",
)
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({OF_OTHERS!r}))  # what is None there cannot be imported
from ppojob_cli.main import main
main(prog_name="ppojob")
"""
EXAMPLES = Path(__file__).parents[3] / "examples"
TRAINER = "make setup in a clone of PPOJob"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_validate_goes_without_them_offline() -> None:
    manifest = str(EXAMPLES / "addition-grpo.yaml")
    done = call("validate", manifest)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the command validate needs it; --offline to judge the manifest alone" in done.stderr
    assert call("validate", "--offline", manifest).returncode == 0


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("run job.yaml --plain", "msgspec"),
        ("run --help", "msgspec"),
        ("data addition --output addition", "pyarrow"),
        ("model owner/name --output model", "huggingface_hub"),
        ("index corpus.jsonl --output index", "msgspec"),
        ("retrieve index", "msgspec"),
        ("export run --output export", "torch"),
    ],
)
def test_what_to_install(command: str, package: str) -> None:
    done = call(*command.split())
    name = command.split()[0]
    line = f"{package}: got nothing: the command {name} needs it; {TRAINER}\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, line, "")


def test_what_to_install_for_a_cluster() -> None:
    line = (
        "kubernetes: got nothing: the command status needs it; pip install '.[kubectl]' in a clone "
        "of PPOJob\n"
    )
    done = call("status", "sum")
    assert (done.returncode, done.stderr, done.stdout) == (2, line, "")


def test_the_other_commands_are_there() -> None:
    done = call("--help")
    assert done.returncode == 0, done.stderr
    assert "run       Needs the package msgspec." in done.stdout
    assert "validate  Check PPOJob manifests" in done.stdout
