"""Template renderer: renders conversations in a child process with time limits.

This is the parent's side, and the messages between both.
"""

import datetime
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError, JobFailed, PPOJobError
from ppojob_trainer.json_value import Json

Messages = Sequence[Mapping[str, Json]]
T = TypeVar("T")

RENDER_SECONDS = 10.0
"""Timeout of one call of the child: a chunk of conversations takes milliseconds."""
START_SECONDS = 60.0
"""Timeout of the first call, for which the child imports its modules."""
ATTEMPTS = 2
"""Processes that may end during a request before the template is considered the cause."""
TEMPLATE_MEMORY_BYTES = 512 * 1024 * 1024
CHUNK_CHATS = 32
"""Conversations per call: their texts fit a frame even if each repeats the longest template."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Size limit of the conversations of one call; a longer conversation is sent alone."""

_log = logging.getLogger(__name__)


class CompileTemplate(msgspec.Struct, frozen=True, tag=True):
    """Compile a template; `now` is the ISO time for ``strftime_now``."""

    source: str
    now: str


class RenderChats(msgspec.Struct, frozen=True, tag=True):
    """Render conversations, each in MessagePack, with the compiled template."""

    conversations: list[bytes]
    variables: dict[str, Any]
    open_turn: bool


TemplateRequest = CompileTemplate | RenderChats


class Rendered(msgspec.Struct, frozen=True):
    """The text of a conversation, or a refusal, with the template's line if known."""

    text: str = ""
    refusal: str = ""
    line: int | None = None


class BadChatTemplate(ConfigError):  # noqa: N818  the name in messages
    """The template is missing, wrong, takes too long, or refuses the messages.

    Attributes:
        refusal: the template's own message; empty without one.
    """

    def __init__(self, problem: str, refusal: str = "") -> None:
        self.refusal = refusal
        super().__init__(problem)


def accepted(outcomes: Iterable[T | BadChatTemplate]) -> list[T]:
    """Return the outcomes of conversations; raises the first refusal."""
    found = list[T]()
    for outcome in outcomes:
        if isinstance(outcome, BadChatTemplate):
            raise outcome
        found.append(outcome)
    return found


class TemplateRenderer(Closeable):
    """A chat template in a child process (``template_child``), which is started when needed.

    `began` is the time of its ``strftime_now``, in Unix seconds.
    """

    def __init__(self, source: str, file: str, began: float) -> None:
        self._source = source
        self._file = file
        self._began = began
        self._child: BoundedProcess | None = None

    def render(
        self,
        conversations: Sequence[Messages],
        variables: Mapping[str, Json],
        *,
        open_turn: bool,
    ) -> list[str | BadChatTemplate]:
        """Return the text of each conversation, or the error if the template refuses it.

        A call has a few conversations, since the limits of the child are per call. Raises
        BadChatTemplate if the template is invalid or too slow, and JobFailed if the child is killed
        repeatedly from outside.
        """
        packed = (msgspec.msgpack.encode([dict(one) for one in chat]) for chat in conversations)
        requests = (RenderChats(chunk, dict(variables), open_turn) for chunk in chunked(packed))
        outcomes = [outcome for request in requests for outcome in self._call(request)]
        return [self._error(one) if one.refusal else one.text for one in outcomes]

    def set_time(self, began: float) -> None:
        """Set the time of ``strftime_now``, in Unix seconds."""
        if began != self._began:
            self._began = began
            self.close()  # the child has compiled the template with the old time

    def close(self) -> None:
        """End the child; a new one starts when needed."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _call(self, request: RenderChats) -> list[Rendered]:
        """Call a child; if it ends without an answer, call a second one.

        The kernel kills the child first when memory is short, and a busy machine may delay it. So
        only a request that ends two children can be the template's fault.
        """
        ends: list[ChildTimeout | ChildDied] = []
        for _ in range(ATTEMPTS):
            try:
                if self._child is None or not self._child.is_alive:
                    self._child = self._started()
                return _exchange(self._child, request, RENDER_SECONDS)
            except (ChildTimeout, ChildDied) as end:
                _log.info("%s: no text from the chat template's process: %r", self._file, end)
                ends.append(end)
        raise self._failure(ends)

    def _started(self) -> BoundedProcess:
        child = BoundedProcess(
            "ppojob_trainer.data.template_child", memory_bytes=TEMPLATE_MEMORY_BYTES, log=_log
        )
        now = datetime.datetime.fromtimestamp(self._began, datetime.UTC).isoformat()
        try:
            (outcome,) = _exchange(child, CompileTemplate(self._source, now), START_SECONDS)
            if outcome.refusal:
                raise self._error(outcome)
        except BaseException:
            child.kill()
            raise
        return child

    def _failure(self, ends: Sequence[ChildTimeout | ChildDied]) -> PPOJobError:
        """Return the error after all attempts; a kill means that the template is not the cause."""
        where = f"{self._file}: got no text"
        killed = next((end for end in ends if isinstance(end, ChildKilled)), None)
        if killed is not None:
            return JobFailed(
                f"{where}: the process that renders the chat template {killed}, and the other "
                "attempt failed too: memory is short, or it is killed; more memory for the pod"
            )
        return BadChatTemplate(
            f"{where}: the process that renders the chat template {ends[-1]}; a template without "
            f"long loops, which needs at most {TEMPLATE_MEMORY_BYTES >> 20} MiB"
        )

    def _error(self, outcome: Rendered) -> BadChatTemplate:
        line = "" if outcome.line is None else f":{outcome.line}"
        refusal = repr(printable(" ".join(outcome.refusal.split()))[:300])
        return BadChatTemplate(
            f"{self._file}{line}: got {refusal} from the chat template: it refuses these messages "
            "or is invalid; messages in the order that the template requires, or another template",
            refusal,
        )


def chunked(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group bodies, in order, within `CHUNK_CHATS` and `CHUNK_BYTES`; a longer one is alone."""
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if chunk and (len(chunk) == CHUNK_CHATS or size + len(body) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk


def _exchange(child: BoundedProcess, request: TemplateRequest, seconds: float) -> list[Rendered]:
    answer = child.call(msgspec.msgpack.encode(request), seconds)
    return msgspec.msgpack.decode(answer, type=list[Rendered])
