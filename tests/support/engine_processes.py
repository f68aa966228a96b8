"""vLLM in processes of its own: a script a process, which writes what it found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment() -> dict[str, str]:
    """Of a script that imports what lies beside this file."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def run_together(
    script: Path, models: Path, output: Path, commands: list[list[str]]
) -> list[dict[str, Any]]:
    """Run one process a command, all at the same time, and return what they found."""
    files = [output / f"facts-{n}.json" for n in range(len(commands))]
    logs = [output / f"log-{n}.txt" for n in range(len(commands))]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for command, file, log in zip(commands, files, logs, strict=True):
            argv = [sys.executable, str(script), str(models), str(file), *command]
            with log.open("wb") as stream:
                child = subprocess.Popen(
                    argv, stdout=stream, stderr=subprocess.STDOUT, env=environment()
                )
            children.append(child)
        for child, log in zip(children, logs, strict=True):
            assert child.wait(timeout=600) == 0, log.read_text(errors="replace")[-6000:]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [json.loads(file.read_text()) for file in files]
