"""The loop of a child: answers its parent, whatever the code that it runs has done to it."""

import os
import sys
from collections.abc import Callable

from ppojob_trainer.children.frames import read_frame, write_frame


def answer_requests(requests: int, answers: int, answer: Callable[[bytes], bytes]) -> None:
    """Answer requests until the parent closes its end."""
    own = os.getpid()
    while (body := read_frame(requests)) is not None:
        answered = answer(body)
        _flush()
        if os.getpid() != own:  # users' code forked, and its child came back here as well
            os._exit(0)
        write_frame(answers, answered)


def _flush() -> None:
    """Send what was printed before the answer; users' code may have closed the stream."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (ValueError, OSError, AttributeError):
            continue
