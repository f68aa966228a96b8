import subprocess
import sys

import pytest

PROGRAM = """
import atexit, threading, time
from ppojob_trainer.__main__ import run_and_exit

class Left:
    def __del__(self):
        print("taken apart")

left = Left()

def work():
    time.sleep(0.2)
    print("thread")

def run():
    atexit.register(print, "registered")
    threading.Thread(target=work).start()
    print("run")
    {end}

run_and_exit(run)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("end", "status", "printed"),
    [
        ("return 7", 7, ["run", "thread", "registered"]),
        ("raise ValueError", 1, ["run", "thread", "registered", "taken apart"]),
    ],
)
def test_what_a_process_does_before_it_ends(end: str, status: int, printed: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines() == printed
