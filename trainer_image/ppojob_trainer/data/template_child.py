"""The child that renders chat templates.

A template comes with a model and is a program of its publisher. The sandbox keeps it from Python,
but ``{{ 10 ** 10 ** 10 }}`` and three nested loops are legal Jinja that ends neither memory nor
time well, and nothing within one process can stop the first. So it runs where it can be killed.
"""

import datetime
import sys
from typing import Any

import jinja2
import msgspec

from ppojob_trainer.children import guardian
from ppojob_trainer.children.frames import read_frame, write_frame
from ppojob_trainer.data.template_environment import TemplateRefusal, compile_template, render
from ppojob_trainer.data.template_wire import (
    MAX_CHAT_BYTES,
    CompileTemplate,
    RenderChats,
    Rendered,
    TemplateRequest,
)
from ppojob_trainer.json_value import Json


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    template: jinja2.Template | None = None
    decoder = msgspec.msgpack.Decoder(TemplateRequest)
    messages = msgspec.msgpack.Decoder(list[dict[str, Any]])
    while (body := read_frame(requests)) is not None:
        request = decoder.decode(body)
        if isinstance(request, CompileTemplate):
            try:
                now = datetime.datetime.fromisoformat(request.now)
                template = compile_template(request.source, now)
                outcomes = [Rendered()]
            except TemplateRefusal as refusal:
                outcomes = [_refused(refusal)]
        else:
            assert template is not None, "a template is compiled before it is rendered"
            outcomes = [
                _render(template, messages.decode(chat), request) for chat in request.conversations
            ]
        write_frame(answers, msgspec.msgpack.encode(outcomes))


def _render(
    template: jinja2.Template, messages: list[dict[str, Json]], request: RenderChats
) -> Rendered:
    try:
        text = render(template, messages, request.variables, open_turn=request.open_turn)
    except TemplateRefusal as refusal:
        return _refused(refusal)
    size = len(text.encode())
    if size > MAX_CHAT_BYTES:
        return Rendered(refusal=f"a text of {size} bytes, at most {MAX_CHAT_BYTES}")
    return Rendered(text=text)


def _refused(refusal: TemplateRefusal) -> Rendered:
    return Rendered(refusal=refusal.reason[:1000] or "it raised", line=refusal.line)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
