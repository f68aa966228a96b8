"""What a tokenizer and the child that renders its template say to each other."""

from typing import Any

import msgspec

MAX_CHAT_BYTES = 16 * 1024 * 1024
"""Of one conversation, as messages and as text: far more than any model reads."""


class CompileTemplate(msgspec.Struct, frozen=True, tag=True):
    """Compile this template and keep it.

    Attributes:
        source: text of the template.
        now: ISO time for ``strftime_now``.
    """

    source: str
    now: str


class RenderChats(msgspec.Struct, frozen=True, tag=True):
    """Render conversations with the compiled template.

    Attributes:
        conversations: MessagePack of each one's list of messages.
        variables: what the template sees besides the messages.
        open_turn: whether the header of the assistant's next turn follows the messages.
    """

    conversations: list[bytes]
    variables: dict[str, Any]
    open_turn: bool


class Rendered(msgspec.Struct, frozen=True):
    """One conversation's text, or why there is none.

    Attributes:
        text: the prompt as text.
        refusal: reason, where the template refuses; empty otherwise.
        line: line of the template, where known.
    """

    text: str = ""
    refusal: str = ""
    line: int | None = None


TemplateRequest = CompileTemplate | RenderChats
