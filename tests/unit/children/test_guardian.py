import ctypes
import os
import signal

import pytest

from ppojob_trainer.children.guardian import guarded

_PR_SET_NAME = 15


def leave_a_child(output: int) -> None:
    """Start a process in a session of its own, whose name is no text, and end."""
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"\xff ) 1", 0, 0, 0)
        os.write(output, str(os.getpid()).encode())
        signal.pause()


@pytest.mark.processes
def test_descendants_end_with_a_process_whatever_their_names() -> None:
    with guarded(leave_a_child) as (_, output):
        child = int(os.read(output, 16))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
