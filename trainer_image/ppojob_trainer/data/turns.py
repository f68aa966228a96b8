"""Turn template: the tokens that a chat template puts between two turns of the model.

A row of several turns is never rendered again: a text has several tokenisations, and templates
rewrite earlier turns (they drop thoughts, trim spaces). The model's tokens stay as generated, and
after each turn only the template's text is appended. That text is found in a dummy conversation
that ends with an assistant turn, with or without tool calls: there templates only append, while
elsewhere many change earlier text. Methods raise `BadChatTemplate` if the template refuses
messages, omits them, or changes their texts in an unknown way, and `JobFailed` if its process
cannot start.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import msgspec

from ppojob_api.problem import printable, shown
from ppojob_trainer.data.chat import ChatTokenizer, Tools
from ppojob_trainer.data.message_text import MessageText
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages, accepted
from ppojob_trainer.json_value import Json

_Message = dict[str, Any]
_Form = Callable[[str], str]
_Kinds = str | list[str]

SPOKEN, CALLED = "ppojobSpokenq", "ppojobCalledq"
"""Dummy text of an assistant turn, and dummy argument of its calls."""
ASKED: _Message = {"role": "user", "content": "Hello."}
"""Dummy message before an assistant turn."""
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_CACHED = 256


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_FORMS: tuple[_Form, ...] = (
    lambda body: body,
    str.strip,
    str.rstrip,  # after images
    _in_json,
    lambda body: _in_json(body.strip()),
)
"""How templates transform a message's text."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """The tokens that a template puts after a turn, without the texts of the messages."""

    # (texts + 1,) template text around the texts of messages. The first begins right after the
    # dummy text of the turn, so it ends the call and the turn.
    pieces: tuple[str, ...]
    forms: tuple[_Form, ...]  # (texts,) the template's transformation of each text
    closing: int  # length of the end of the turn in the first piece, with its end token
    end: int  # start of that end token; equal to `closing` if there is none


class TurnTemplate:
    """A model's chat template, for rows of several turns."""

    def __init__(self, chat: ChatTokenizer, variables: Mapping[str, Json] | None = None) -> None:
        self.chat = chat
        self.variables = dict(variables or {})
        self.text = MessageText(chat)
        added = chat.added_tokens
        self._ends = {added[i].content for i in chat.eos_token_ids if i in added}
        self._suffixes: dict[bytes, Suffix] = {}
        self._opening = lru_cache(maxsize=_CACHED)(
            lambda tools: self.render([ASKED], msgspec.json.decode(tools), open_turn=True)
        )

    def delta(
        self,
        messages: Messages,
        tools: Tools | None = None,
        *,
        written: Sequence[int] | None = None,
    ) -> list[int]:
        """Return the tokens between a turn of the model and its next one.

        The text of a control token in a message is tokenised as ordinary text. `messages` are
        answers of tools, in the order of the turn's calls, or of a user, with text or parts with
        images, each of which becomes one token; those of tools also have "name" and
        "tool_call_id" of the call. `written` are the tokens of the turn, to which the template's
        end of a turn is added as far as it is missing; None if the turn is complete.
        """
        suffix = self.suffix(messages, tools)
        first, *others = suffix.pieces
        last = self.text.control.get(written[-1], "") if written else ""
        start = self._missing_from(suffix, None if written is None else last)
        bodies = [text for message in messages for text in _texts(message)]
        texts = [form(body) for form, body in zip(suffix.forms, bodies, strict=True)]
        return self.text.encode([first[start:], *others], texts)

    def begun(self, messages: Messages, tools: Tools | None = None) -> list[int]:
        """Return the tokens of a conversation with the header of the model's turn.

        Unlike in prompts, the text of a control token in a message is tokenised as ordinary text.
        """
        rest = self.render(messages, tools, open_turn=True)
        pieces, bodies = [], []
        for body in (text for message in messages for text in _texts(message)):
            if not any(self.text.marks(body)):
                continue
            found = next((text for form in _FORMS if (text := form(body)) in rest), None)
            if found is None:
                why = "the chat template changes the text of a message"
                raise self.refusal(f"no {shown(body)} for this message", why)
            before, _, rest = rest.partition(found)
            pieces.append(before)
            bodies.append(found)
        return self.text.encode([*pieces, rest], bodies)

    def turn(self, content: str) -> list[int]:
        """Return the tokens of a model turn with this content and its end, as if generated."""
        suffix = self.suffix([ASKED])
        if suffix.closing > suffix.end:
            return self.chat.encode(content + suffix.pieces[0][: suffix.closing])
        return [*self.chat.encode(content), *self.chat.eos_token_ids[:1]]

    def ended(self, text: str) -> list[int]:
        """Return the tokens of a rendered turn up to its end token, which is added if missing."""
        ends = [mark.end() for mark in self.text.marks(text) if mark[0] in self._ends]
        if ends:
            return self.chat.encode(text[: ends[-1]])
        return [*self.chat.encode(text.rstrip()), *self.chat.eos_token_ids[:1]]

    def suffix(self, messages: Messages, tools: Tools | None = None) -> Suffix:
        """Return the suffix for messages of these roles, names and kinds of content; cached."""
        plain = [_plain(message, i) for i, message in enumerate(messages)]
        kinds = [_kinds(message) for message in messages]
        key = msgspec.json.encode([plain, kinds, tools])
        if key not in self._suffixes:
            if len(self._suffixes) >= _CACHED:
                del self._suffixes[next(iter(self._suffixes))]
            self._suffixes[key] = self._rendered(plain, kinds, tools)
        return self._suffixes[key]

    def opening(self, tools: Tools) -> str:
        """Return the text of `ASKED` with the header of the next turn; cached."""
        return self._opening(msgspec.json.encode(tools))

    def render(self, conversation: Messages, tools: Tools | None, *, open_turn: bool) -> str:
        (text,) = accepted(
            self.chat.render_chats([conversation], self.variables, tools=tools, open_turn=open_turn)
        )
        return text

    def refusal(self, got: str, why: str) -> BadChatTemplate:
        """Return the error of a template that does not support rows of several turns."""
        allowed = (
            "a template that renders a turn the same at any position (spec.model.chatTemplate)"
        )
        _, file = self.chat.template
        return BadChatTemplate(printable(f"{file}: got {got}: {why}; {allowed}"))

    def _rendered(self, plain: list[_Message], kinds: list[_Kinds], tools: Tools | None) -> Suffix:
        words = [f"ppojobBody{i}q" for i in range(sum(one.count("text") for one in kinds))]
        probes = [f" \n\"{word}'\\<b> \u00e9\n " for word in words]
        contexts = list(_contexts(plain))
        chats = [[*context, *_filled(plain, kinds, words)] for context in contexts]
        texts = self.chat.render_chats(chats, self.variables, tools=tools)
        for word, (context, text) in product((CALLED, SPOKEN), zip(contexts, texts, strict=True)):
            if isinstance(text, str) and (pieces := _pieces(text, word, words)) is not None:
                closing, end = self._closing(context, word, pieces[0], tools)
                full = [*context, *_filled(plain, kinds, probes)]
                after = self.render(full, tools, open_turn=True).rpartition(word)[2]
                forms = self._forms(after, pieces, probes)
                return Suffix(pieces, forms, closing, end)
        refused = [text for text in texts if isinstance(text, BadChatTemplate)]
        if len(refused) == len(texts):
            raise refused[0]
        roles = ", ".join(str(message["role"]) for message in plain)
        raise self.refusal(
            f"a turn of the assistant and then {roles}",
            "the chat template does not show each of these messages once, in this order",
        )

    def _closing(
        self, context: Messages, word: str, first: str, tools: Tools | None
    ) -> tuple[int, int]:
        """Return `Suffix.closing` and `Suffix.end`, by rendering the turn without messages."""
        (text,) = self.chat.render_chats([context], self.variables, tools=tools, open_turn=False)
        alone = text.rpartition(word)[2] if isinstance(text, str) else first
        end = self.text.find(alone, self._ends)
        if end is None:
            if not first.startswith(alone):
                raise self._inconsistent_end(alone, first)
            return len(alone), len(alone)
        mark = self.text.at(first, end.start())
        if not mark or not first.startswith(alone[: end.start()]):
            raise self._inconsistent_end(alone, first)
        return end.start() + len(mark), end.start()

    def _inconsistent_end(self, alone: str, first: str) -> BadChatTemplate:
        got = f"{shown(alone)} after a last turn, and {shown(first)} if messages follow"
        return self.refusal(got, "how the chat template ends a turn depends on what follows")

    def _forms(self, text: str, pieces: Sequence[str], probes: Sequence[str]) -> tuple[_Form, ...]:
        """Detect the template's transformation of each text by probes."""
        at = len(pieces[0])
        forms = []
        for probe, piece in zip(probes, pieces[1:], strict=True):
            form = next((f for f in _FORMS if text.startswith(f(probe) + piece, at)), None)
            if form is None:
                got = f"{shown(text[at : at + 2 * len(probe)])} for a message of {shown(probe)}"
                raise self.refusal(got, "the chat template changes the text of a message")
            at += len(form(probe) + piece)
            forms.append(form)
        return tuple(forms)

    def _missing_from(self, suffix: Suffix, last: str | None) -> int:
        """Return the position in the first piece from which the turn lacks text.

        `last` is the control token at the end of the turn, empty if there is none; None if the
        turn is complete.
        """
        if last and (found := self.text.find(suffix.pieces[0], {last})) is not None:
            return found.end()
        has_ended = last is None or last in self._ends
        return suffix.closing if has_ended else suffix.end


def _plain(message: Mapping[str, Json], number: int) -> _Message:
    """Return a message without its text; names come from the model, so they are validated."""
    if message["role"] != "tool":
        return {"role": message["role"]}
    found: _Message = {"role": "tool", "name": "tool", "tool_call_id": f"call{number:05}"}
    for key in ("name", "tool_call_id"):
        value = message.get(key)
        if isinstance(value, str) and _NAME.fullmatch(value):
            found[key] = value
    return found


def _kinds(message: Mapping[str, Json]) -> _Kinds:
    """Return the kind of a message's content: "text", "" for none, or the types of its parts."""
    content = message["content"]
    if isinstance(content, list):
        return [str(part["type"]) for part in content if isinstance(part, dict)]
    return "text" if content else ""


def _texts(message: Mapping[str, Json]) -> list[str]:
    content = message["content"]
    if not isinstance(content, list):
        return [str(content)] if content else []
    return [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]


def _filled(
    plain: Sequence[_Message], kinds: Sequence[_Kinds], texts: Sequence[str]
) -> list[_Message]:
    """Return the messages with content of these kinds."""
    left = iter(texts)

    def part(kind: str) -> Any:
        return {"type": kind, "text": next(left)} if kind == "text" else {"type": kind}

    return [
        {**message, "content": [part(one) for one in kind]}
        if isinstance(kind, list)
        else {**message, "content": next(left) if kind else ""}
        for message, kind in zip(plain, kinds, strict=True)
    ]


def _contexts(plain: Sequence[_Message]) -> list[list[_Message]]:
    """Return dummy conversations that end with the turn that these messages answer, best first.

    Some templates support one call per turn, some need arguments as text, some put content after
    the calls, and some refuse a conversation without a user message first.
    """
    answers = [message for message in plain if message["role"] == "tool"]
    if not answers:
        turns = [assistant_turn()]
    else:
        turns = [
            assistant_turn(called, as_text=as_text, content=content)
            for called in (answers, answers[-1:])
            for as_text in (False, True)
            for content in ("", SPOKEN)
        ]
    return [[*begun, turn] for begun in ([ASKED], []) for turn in turns]


def assistant_turn(
    answers: Sequence[Mapping[str, Json]] = (),
    *,
    as_text: bool = False,
    content: str = SPOKEN,
    mark: str = "",
) -> _Message:
    """Return a dummy assistant turn, with a call for each tool message in `answers`.

    Arguments of calls are an object, or JSON text if `as_text`. `mark` is a suffix of the content
    and of the last call's argument.
    """
    if not answers:
        return {"role": "assistant", "content": content + mark}
    calls = []
    for i, answer in enumerate(answers):
        arguments = {"x": CALLED + mark if i == len(answers) - 1 else "y"}
        function = {
            "name": answer["name"],
            "arguments": json.dumps(arguments) if as_text else arguments,
        }
        calls.append({"id": answer["tool_call_id"], "type": "function", "function": function})
    content = content and content + mark
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _pieces(text: str, word: str, bodies: Sequence[str]) -> tuple[str, ...] | None:
    """Split the text after `word` at the bodies; None unless each occurs once, in order."""
    before, _, rest = text.rpartition(word)
    if not before or any(rest.count(body) != 1 for body in bodies):
        return None
    pieces = []
    for body in bodies:
        piece, is_next, rest = rest.partition(body)
        if not is_next:
            return None
        pieces.append(piece)
    return (*pieces, rest)
