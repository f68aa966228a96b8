"""`python -m ppojob_trainer COMMAND`: entry point of the containers of a job."""

import atexit
import os
import sys
from collections.abc import Callable

from ppojob_trainer.cli import main


def run_and_exit(run: Callable[[], int]) -> None:
    """Run a command and exit with its status, without the teardown of the interpreter.

    Non-daemon threads are joined and later `atexit` handlers run. The teardown would only unload
    PyTorch, which takes half a second.
    """
    statuses = list[int]()

    def exit_now() -> None:
        for status in statuses:  # none if `run` raised
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    atexit.register(exit_now)  # registered first, so called last
    statuses.append(run())
    sys.exit(statuses[0])


if __name__ == "__main__":
    run_and_exit(lambda: main(sys.argv[1:]))
