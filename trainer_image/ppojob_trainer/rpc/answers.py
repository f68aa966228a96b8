"""What was already done: the answers of this step and the last, by request id.

A controller that died, or lost a connection, asks again with the same id. Work that is done is
answered from here; work under way is joined; nothing is done twice.
"""

import hashlib
from dataclasses import dataclass, field

from ppojob_trainer.rpc.wire import RequestId


class RequestChangedError(Exception):
    """The same request id came with another body: the step is not what it was; never served."""


@dataclass(slots=True)
class Entry:
    """One piece of work: who waits for it and, once done, its answer.

    Attributes:
        digest: of the request's method and body.
        waiting: (connection, call number) of everybody who asked.
        answer: encoded body, or None while the work is under way.
    """

    method: str
    digest: bytes
    waiting: list[tuple[bytes, int]] = field(default_factory=list)
    answer: bytes | None = None


class AnswerStore:
    """Answers by request id; forgets what is older than the step before the newest one.

    What was done before a job went back to a commit is never asked for again.
    """

    def __init__(self) -> None:
        self._entries: dict[RequestId, Entry] = {}
        self._kept_from = (0, 0)  # rewinds and step

    def ask(
        self, request: RequestId, method: str, body: memoryview, waiter: tuple[bytes, int]
    ) -> tuple[Entry, bool]:
        """Note that somebody asks; returns the entry and whether the work is new.

        Raises:
            RequestChangedError: the id is known with another method or body.
        """
        hashed = hashlib.blake2b(method.encode() + b"\0", digest_size=16)
        hashed.update(body)
        digest = hashed.digest()
        entry = self._entries.get(request)
        if entry is None:
            self._forget_before(request.rewinds, request.step - 1)
            entry = self._entries[request] = Entry(method, digest, [waiter])
            return entry, True
        if entry.digest != digest:
            raise RequestChangedError(
                f"{request.stage} of step {request.step} came again with another content, as where "
                "a reward function does not say the same twice"
            )
        if entry.answer is None and waiter not in entry.waiting:
            entry.waiting.append(waiter)
        return entry, False

    def settle(self, request: RequestId, answer: bytes, *, is_error: bool) -> Entry:
        """Keep the answer of work that is done; errors are told but not kept."""
        entry = self._entries[request]
        entry.answer = answer
        if is_error:
            del self._entries[request]
        return entry

    def _forget_before(self, rewinds: int, step: int) -> None:
        """Drop answers of earlier lives and of steps before `step`; work under way stays."""
        if (rewinds, step) <= self._kept_from:
            return
        self._kept_from = (rewinds, step)
        old = [
            id_
            for id_, entry in self._entries.items()
            if (id_.rewinds, id_.step) < self._kept_from and entry.answer
        ]
        for request in old:
            del self._entries[request]
