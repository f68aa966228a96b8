"""Child process that renders chat templates, with Hugging Face's semantics in a sandbox."""

import datetime
import json
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec

from ppojob_trainer.children import guardian
from ppojob_trainer.data.template_renderer import RenderChats, Rendered, TemplateRequest
from ppojob_trainer.json_value import Json

_TEMPLATE_FILE = "<template>"


class _GenerationBlocks(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training masks; it has no effect here."""

    tags = {"generation"}  # noqa: RUF012  jinja2 reads it from the class

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def compile_template(source: str, now: datetime.datetime) -> jinja2.Template:
    """Compile a chat template; `now` is the time for ``strftime_now``."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment.from_string(source)


def render(
    template: jinja2.Template,
    messages: list[dict[str, Json]],
    variables: Mapping[str, Json],
    *,
    open_turn: bool,
) -> str:
    """Render a conversation."""
    given: dict[str, Json] = {"tools": None, "documents": None, **variables}
    return template.render(**given, messages=messages, add_generation_prompt=open_turn)


def refused(error: Exception) -> Rendered:
    """Convert any exception of a template, with the line that raised it."""
    line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == _TEMPLATE_FILE:
            line = number
    kind = type(error).__name__
    reason = f"{kind}: {error}"
    if isinstance(error, jinja2.TemplateError):
        reason = error.message or kind
    return Rendered(refusal=reason[:1000], line=line)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _start() -> Callable[[bytes], bytes]:
    template: jinja2.Template | None = None
    decoder = msgspec.msgpack.Decoder(TemplateRequest)
    messages = msgspec.msgpack.Decoder(list[dict[str, Any]])

    def answer(body: bytes) -> bytes:
        nonlocal template
        request = decoder.decode(body)
        if isinstance(request, RenderChats):
            assert template is not None, "a template is compiled before it is rendered"
            chats = map(messages.decode, request.conversations)
            return msgspec.msgpack.encode([_render(template, chat, request) for chat in chats])
        try:
            now = datetime.datetime.fromisoformat(request.now)
            template = compile_template(request.source, now)
            return msgspec.msgpack.encode([Rendered()])
        except Exception as error:  # constant folding runs the template's own arithmetic
            return msgspec.msgpack.encode([refused(error)])

    return answer


def _render(
    template: jinja2.Template, messages: list[dict[str, Json]], request: RenderChats
) -> Rendered:
    try:
        return Rendered(render(template, messages, request.variables, open_turn=request.open_turn))
    except Exception as error:  # whatever a template's expression can raise
        return refused(error)


if __name__ == "__main__":
    guardian.main(_start)
