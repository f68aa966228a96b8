"""The process of a tracker, which alone imports its library."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.children import guardian
from ppojob_trainer.trackers.follower import Follower
from ppojob_trainer.trackers.messages import Answer, Finish, Open, Request, keep

_NICENESS: Final = 10
_LINE_CHARACTERS: Final = 400
_SECRET_NAMES: Final = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^\s/@]+@")


class _Session:
    """Answers requests: the first opens a run, the others are about it."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(Request)

    def answer(self, body: bytes) -> bytes:
        """Do what is asked; what the library raises is told in a line."""
        try:
            done = self._done(self._decoder.decode(body))
        except (Exception, SystemExit) as error:
            text = without_secrets(f"{type(error).__name__}: {error}", os.environ)
            done = Answer(failure=printable(" ".join(text.split()), _LINE_CHARACTERS))
        return msgspec.msgpack.encode(done)

    def _done(self, request: Request) -> Answer:
        is_behind = False
        if isinstance(request, Open):
            keep(request.run)
            self._follower = Follower(request.run)
        elif isinstance(request, Finish):
            self._follower.finish()
        else:
            is_behind = self._follower.send()
        told = without_secrets(self._follower.told, os.environ)
        return Answer(self._follower.last_step, is_behind=is_behind, told=told)


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """A text without keys, tokens and passwords of the environment, and without those in URLs."""
    for name, value in environment.items():
        if value and _SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    return _USER_IN_URL.sub("***@", text)


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    os.nice(_NICENESS)  # it shares the cores with the training
    # Libraries chat, and may show a key. What went wrong is in the answers.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())
    guardian.answer_requests(requests, answers, _Session().answer)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
