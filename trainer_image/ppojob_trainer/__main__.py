"""`python -m ppojob_trainer COMMAND`: what the containers of a job run."""

import atexit
import os
import sys
from collections.abc import Callable

from ppojob_trainer.cli import main


def end_with(run: Callable[[], int]) -> None:
    """End this process with the status that `run` answers.

    It ends as soon as its threads have, and what is registered from here on has been called: taking
    PyTorch's modules apart takes Python half a second more, and the kernel no time.
    """
    statuses = list[int]()

    def leave() -> None:
        for status in statuses:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    atexit.register(leave)  # the first to be registered is the last to be called
    statuses.append(run())
    sys.exit(statuses[0])


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
