"""`python -m ppojob_trainer COMMAND`: what the containers of a job run."""

import atexit
import os
import sys

from ppojob_trainer.cli import main

_statuses: list[int] = []


def _leave() -> None:
    """End the process as soon as all else that is due at its end is done.

    Taking PyTorch's modules apart takes Python half a second, and the kernel no time.
    """
    for status in _statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    atexit.register(_leave)  # the first to be registered is the last to be called
    _statuses.append(main(sys.argv[1:]))
    sys.exit(_statuses[0])
