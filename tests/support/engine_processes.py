"""vLLM in processes of its own: forks of a script, each of which writes what it found.

Run as a script this loads another one, and forks a process for each of its command lines: vLLM is
imported once for all of them.
"""

import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ppojob_trainer.heartbeat_pipe import die_with_parent


def environment() -> dict[str, str]:
    """Of a script that imports what lies beside this file."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def run_together(
    script: Path, models: Path, output: Path, commands: list[list[str]]
) -> list[dict[str, Any]]:
    """Run one process a command, all at the same time, and return what they found."""
    files = [output / f"facts-{n}.json" for n in range(len(commands))]
    lines = [[str(models), str(file), *c] for file, c in zip(files, commands, strict=True)]
    program = [sys.executable, __file__, str(script), json.dumps(lines)]
    log = output / "log.txt"
    with log.open("wb") as stream:
        done = subprocess.run(program, stdout=stream, stderr=stream, env=environment(), timeout=900)
    assert done.returncode == 0, log.read_text(errors="replace")[-6000:]
    return [json.loads(file.read_text()) for file in files]


def _run(script: str, line: list[str], parent: int) -> None:
    die_with_parent(parent)
    sys.argv = [script, *line]
    importlib.import_module(Path(script).stem).main()


def main(script: str, lines: list[list[str]]) -> None:
    sys.path.insert(0, str(Path(script).parent))
    gc.disable()  # while half a million objects are loaded that stay
    importlib.import_module(Path(script).stem)
    gc.freeze()
    gc.enable()
    forks = multiprocessing.get_context("fork")
    processes = [forks.Process(target=_run, args=(script, line, os.getpid())) for line in lines]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:  # others may wait for it in vain
            os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
