"""A server program that ends with this process, with all its descendants."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ppojob_trainer.children import guardian
from ppojob_trainer.closeable import Closeable


class Program(Closeable):
    """A program under a guardian, with the output streams of this process.

    `environment` is complete.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        end_read, self._end_pipe = os.pipe()
        try:
            # A new session: a signal to the group of this process must not kill the guardian
            # before it has killed the rest.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(end_read), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(end_read,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._end_pipe)
            raise
        finally:
            os.close(end_read)

    def ended(self) -> str | None:
        """Describe how it ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        number = code - guardian.SIGNALLED_STATUS if code > guardian.SIGNALLED_STATUS else -code
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(number).name}"
        return f"exit status {code}"

    def close(self) -> None:
        """Kill it and all its descendants, and wait for their end. Idempotent."""
        if self._end_pipe >= 0:
            os.close(self._end_pipe)
            self._end_pipe = -1
        self._process.wait()


if __name__ == "__main__":
    sys.exit(guardian.run_program(sys.argv[1:]))
