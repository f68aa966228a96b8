"""Turn template: the tokens that a chat template puts between two turns of the model.

A row of several turns is never rendered again. The model's tokens stay as they were generated: a
text can be tokenised in more than one way, and templates rewrite earlier turns (they drop thoughts,
trim spaces). After each turn, only what the template puts there is appended. It is taken from a
dummy conversation in which an assistant has just spoken, or has just made calls: there templates
only append, while elsewhere many change earlier text.
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
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages
from ppojob_trainer.json_value import Json

_Message = dict[str, Any]
_Form = Callable[[str], str]
_Kinds = str | list[str]

SPOKEN, CALLED = "ppojobSpokenq", "ppojobCalledq"
"""Words of the dummy assistant; a template whose text lacks them shows no such turn."""
ASKED: _Message = {"role": "user", "content": "Hello."}
"""A dummy message that a turn answers."""
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_CACHED = 256


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_FORMS: tuple[_Form, ...] = (
    lambda body: body,
    str.strip,
    str.rstrip,  # where pictures stand before it
    _in_json,
    lambda body: _in_json(body.strip()),
)
"""How templates transform a message's text."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """The tokens that a template puts after a turn, without the texts of the messages.

    Attributes:
        pieces: (texts + 1,) around the texts of messages; the first begins right after the last
            word of the turn, so it may end a call and the turn.
        forms: (texts,) the template's transformation of each.
        closing: length of the end of the turn, in the first piece, with its end token.
        end: where that end token begins; equal to `closing` if the template has none.
    """

    pieces: tuple[str, ...]
    forms: tuple[_Form, ...]
    closing: int
    end: int


class TurnTemplate:
    """A model's chat template, for rows of several turns."""

    def __init__(self, chat: ChatTokenizer, variables: Mapping[str, Json] | None = None) -> None:
        self.chat = chat
        self.variables = dict(variables or {})
        self.text = MessageText(chat)
        added = chat.added_tokens
        self._ends = {added[i].content for i in chat.eos_token_ids if i in added}
        self._suffixes: dict[bytes, Suffix] = {}
        self._opening = lru_cache(maxsize=_CACHED)(self._opened)

    def delta(
        self,
        messages: Messages,
        tools: Tools | None = None,
        *,
        written: Sequence[int] | None = None,
    ) -> list[int]:
        """Tokens from where a turn of the model ended to where its next one begins.

        Control tokens in a message's text are ordinary text.

        Args:
            messages: that follow the turn: answers of tools, in the order of its calls, or what a
                user says; with "role" and "content", a text or parts of which some are pictures,
                each of which becomes one token; and of tools "name" and "tool_call_id" where the
                model wrote some.
            tools: schemas of what it may call, as in its prompt.
            written: tokens of the turn: of the template's end of a turn, only what they lack is
                added. None: it ended as the template ends one.

        Raises:
            BadChatTemplate: the template refuses such a turn, shows no message of this role, or
                changes texts in a way that is not known.
            JobFailed: the template's process cannot start, or is killed again and again.
        """
        suffix = self.suffix(messages, tools)
        first, *others = suffix.pieces
        last = self.text.control.get(written[-1], "") if written else ""
        cut = self._cut(suffix, None if written is None else last)
        bodies = [text for message in messages for text in _texts(message)]
        texts = [form(body) for form, body in zip(suffix.forms, bodies, strict=True)]
        return self.text.encode([first[cut:], *others], texts)

    def begun(self, messages: Messages, tools: Tools | None = None) -> list[int]:
        """Tokens of a conversation, as of a prompt, up to where the model's turn begins.

        Control tokens in a message's text are ordinary text, other than in prompts.

        Args:
            messages: with "role" and "content", a text.
            tools: schemas of what the model may call.

        Raises:
            BadChatTemplate: the template refuses them, or changes texts in a way that is not known.
        """
        rest = self.render(messages, tools, open_turn=True)
        pieces, bodies = [], []
        for body in (str(message["content"]) for message in messages):
            if not any(self.text.marks(body)):
                continue
            found = next((text for form in _FORMS if (text := form(body)) in rest), None)
            if found is None:
                why = "the chat template changes what a message says"
                raise self.refusal(f"no {shown(body)} where it is a message", why)
            before, _, rest = rest.partition(found)
            pieces.append(before)
            bodies.append(found)
        return self.text.encode([*pieces, rest], bodies)

    def turn(self, content: str) -> list[int]:
        """Return the tokens of a model turn with this content, as generated, its end included.

        Raises:
            BadChatTemplate: see `delta`.
        """
        suffix = self.suffix([ASKED])
        if suffix.closing > suffix.end:
            return self.chat.encode(content + suffix.pieces[0][: suffix.closing])
        return [*self.chat.encode(content), *self.chat.eos_token_ids[:1]]

    def ended(self, text: str) -> list[int]:
        """Tokens of a turn that the template wrote, up to its last end token, or with one."""
        ends = [mark.end() for mark in self.text.marks(text) if mark[0] in self._ends]
        if ends:
            return self.chat.encode(text[: ends[-1]])
        return [*self.chat.encode(text.rstrip()), *self.chat.eos_token_ids[:1]]

    def suffix(self, messages: Messages, tools: Tools | None = None) -> Suffix:
        """Return the common part of messages of these roles and names; rendered once."""
        plain = [_plain(message, i) for i, message in enumerate(messages)]
        kinds = [_kinds(message) for message in messages]
        key = msgspec.json.encode([plain, kinds, tools])
        if key not in self._suffixes:
            if len(self._suffixes) >= _CACHED:
                del self._suffixes[next(iter(self._suffixes))]
            self._suffixes[key] = self._rendered(plain, kinds, tools)
        return self._suffixes[key]

    def opening(self, tools: Tools) -> str:
        """The text of `ASKED` with the header of the turn to come; rendered once, then kept."""
        return self._opening(msgspec.json.encode(tools))

    def _opened(self, tools: bytes) -> str:
        return self.render([ASKED], msgspec.json.decode(tools), open_turn=True)

    def render(self, conversation: Messages, tools: Tools | None, *, open_turn: bool) -> str:
        """The text of a conversation.

        Raises:
            BadChatTemplate: the template refuses it.
        """
        (outcome,) = self.chat.render_chats(
            [conversation], self.variables, tools=tools, open_turn=open_turn
        )
        if isinstance(outcome, BadChatTemplate):
            raise outcome
        return outcome

    def refusal(self, got: str, why: str) -> BadChatTemplate:
        """An error that says why the template cannot be used for rows of several turns."""
        allowed = (
            "a template that writes each turn alike, wherever it stands (spec.model.chatTemplate)"
        )
        _, file = self.chat.template
        return BadChatTemplate(printable(f"{file}: got {got}: {why}; {allowed}"))

    def _rendered(self, plain: list[_Message], kinds: list[_Kinds], tools: Tools | None) -> Suffix:
        words = [f"ppojobBody{i}q" for i in range(sum(one.count("text") for one in kinds))]
        probes = [f" \n\"{word}'\\<b> \u00e9\n " for word in words]
        contexts = list(_contexts(plain))
        asked = [[*context, *_filled(plain, kinds, words)] for context in contexts]
        texts = self.chat.render_chats(asked, self.variables, tools=tools)
        for word, (context, text) in product((CALLED, SPOKEN), zip(contexts, texts, strict=True)):
            if isinstance(text, str) and (pieces := _pieces(text, word, words)) is not None:
                closing, end = self._closing(context, word, pieces[0], tools)
                full = [*context, *_filled(plain, kinds, probes)]
                seen = self.render(full, tools, open_turn=True).rpartition(word)[2]
                forms = self._forms(seen, pieces, probes)
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
        """Where the end of the turn ends, and where its end token begins, in the first piece."""
        (text,) = self.chat.render_chats([context], self.variables, tools=tools, open_turn=False)
        alone = text.rpartition(word)[2] if isinstance(text, str) else first
        end = self.text.find(alone, self._ends)
        if end is None:
            if not first.startswith(alone):
                raise self._other_end(alone, first)
            return len(alone), len(alone)
        mark = self.text.at(first, end.start())
        if not mark or not first.startswith(alone[: end.start()]):
            raise self._other_end(alone, first)
        return end.start() + len(mark), end.start()

    def _other_end(self, alone: str, first: str) -> BadChatTemplate:
        got = f"{shown(alone)} behind a turn, and {shown(first)} where messages follow"
        return self.refusal(got, "how the chat template ends a turn depends on what follows")

    def _forms(self, text: str, pieces: Sequence[str], probes: Sequence[str]) -> tuple[_Form, ...]:
        """Detect the template's transformation of each text by probes."""
        at = len(pieces[0])
        forms = []
        for probe, piece in zip(probes, pieces[1:], strict=True):
            form = next((f for f in _FORMS if text.startswith(f(probe) + piece, at)), None)
            if form is None:
                got = f"{shown(text[at : at + 2 * len(probe)])} for a message of {shown(probe)}"
                raise self.refusal(got, "the chat template changes what a message says")
            at += len(form(probe) + piece)
            forms.append(form)
        return tuple(forms)

    def _cut(self, suffix: Suffix, last: str | None) -> int:
        """Where in the first piece begins what the turn does not have yet.

        `last` is the control token that the turn ends with; empty where it ends with none, None
        where it ends as the template ends one.
        """
        if last and (found := self.text.find(suffix.pieces[0], {last})) is not None:
            return found.end()
        has_ended = last is None or last in self._ends
        return suffix.closing if has_ended else suffix.end


def _plain(message: Mapping[str, Json], number: int) -> _Message:
    """A message without its text. Names are the model's words, so they are taken with care."""
    if message["role"] != "tool":
        return {"role": message["role"]}
    given: _Message = {"role": "tool", "name": "tool", "tool_call_id": f"call{number:05}"}
    for key in ("name", "tool_call_id"):
        value = message.get(key)
        if isinstance(value, str) and _NAME.fullmatch(value):
            given[key] = value
    return given


def _kinds(message: Mapping[str, Json]) -> _Kinds:
    """What a message consists of: a text, none, or the types of its parts in a list."""
    content = message["content"]
    if isinstance(content, list):
        return [str(part["type"]) for part in content if isinstance(part, dict)]
    return "text" if content else ""


def _texts(message: Mapping[str, Json]) -> list[str]:
    """The texts of a message."""
    content = message["content"]
    if not isinstance(content, list):
        return [str(content)] if content else []
    return [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]


def _filled(
    plain: Sequence[_Message], kinds: Sequence[_Kinds], texts: Sequence[str]
) -> list[_Message]:
    """Messages of these kinds with texts in their places."""
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
    """Conversations in which an assistant has just said what these messages answer, best first.

    Some templates know calls one at a time, some want their arguments as text, some put words
    after the calls, and some refuse a conversation that no user began.
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
    """A turn of the assistant, with calls that these messages of tools answer.

    Args:
        answers: to its calls.
        as_text: whether arguments are a text of JSON instead of an object.
        content: what it says beside the calls.
        mark: put after its words.
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
    """What is around bodies, after the assistant's word; None where one is not there just once."""
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
