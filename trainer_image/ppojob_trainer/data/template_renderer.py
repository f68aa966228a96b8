"""Turns conversations into text in a child process that a chat template cannot keep busy."""

import datetime
import logging
from collections.abc import Mapping, Sequence

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.closing import Closing
from ppojob_trainer.data.template_wire import (
    CompileTemplate,
    RenderChats,
    Rendered,
    TemplateRequest,
)
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

Messages = Sequence[Mapping[str, Json]]

RENDER_SECONDS = 10.0
"""Time for one call of the child: a batch of conversations takes milliseconds."""
START_SECONDS = 60.0
TEMPLATE_MEMORY_BYTES = 512 * 1024 * 1024

_log = logging.getLogger(__name__)


class BadChatTemplate(ConfigError):  # noqa: N818  the name in messages
    """The template is missing, wrong, takes too long, or refuses the messages."""


class TemplateRenderer(Closing):
    """A chat template in a child process (``template_child``), started when it is needed.

    Args:
        source: text of the template.
        file: where it is from, for messages.
        now: what its ``strftime_now`` tells.
    """

    def __init__(self, source: str, file: str, now: datetime.datetime) -> None:
        self._source = source
        self._file = file
        self._now = now.isoformat()
        self._child: BoundedProcess | None = None

    def render(
        self,
        conversations: Sequence[Messages],
        variables: Mapping[str, Json],
        *,
        open_turn: bool,
    ) -> list[str | BadChatTemplate]:
        """Render conversations; in place of one that the template refuses, why.

        Args:
            conversations: each a list of mappings with "role" and "content".
            variables: what the template sees besides.
            open_turn: end with the header of the assistant's next turn.

        Raises:
            BadChatTemplate: what concerns all of them: the template is wrong or too slow.
        """
        request = RenderChats(
            [[dict(message) for message in messages] for messages in conversations],
            dict(variables),
            open_turn,
        )
        if self._child is None or not self._child.is_alive:
            self._child = self._started()
        rendered = self._exchange(self._child, request, RENDER_SECONDS)
        return [self._error(outcome) if outcome.refusal else outcome.text for outcome in rendered]

    def close(self) -> None:
        """End the child; a new one starts when needed."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _started(self) -> BoundedProcess:
        child = BoundedProcess(
            "ppojob_trainer.data.template_child", memory_bytes=TEMPLATE_MEMORY_BYTES, log=_log
        )
        try:
            self._compile(child)
        except BaseException:
            child.kill()
            raise
        return child

    def _compile(self, child: BoundedProcess) -> None:
        # A template that is known to be harmless tells a slow machine from a slow template.
        self._exchange(child, CompileTemplate("", self._now), START_SECONDS)
        (outcome,) = self._exchange(child, CompileTemplate(self._source, self._now), RENDER_SECONDS)
        if outcome.refusal:
            raise self._error(outcome)

    def _exchange(
        self, child: BoundedProcess, request: TemplateRequest, seconds: float
    ) -> list[Rendered]:
        try:
            answer = child.call(msgspec.msgpack.encode(request), seconds)
        except ChildTimeout:
            raise BadChatTemplate(
                f"{self._file}: got no text after {seconds:g} s: the chat template does not end in "
                "time; a template without long loops"
            ) from None
        except ChildDied as death:
            raise BadChatTemplate(
                f"{self._file}: got no text: the process that renders the chat template {death}; "
                f"a template that needs at most {TEMPLATE_MEMORY_BYTES >> 20} MiB"
            ) from None
        return msgspec.msgpack.decode(answer, type=list[Rendered])

    def _error(self, outcome: Rendered) -> BadChatTemplate:
        line = "" if outcome.line is None else f":{outcome.line}"
        reason = printable(" ".join(outcome.refusal.split()))[:300]
        return BadChatTemplate(
            f"{self._file}{line}: got {reason!r} from the chat template: it refuses these messages "
            "or is wrong; messages in the order the template wants, or another template"
        )
