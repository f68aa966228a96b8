"""Tokenises message texts so that no control token can be injected.

In the template's text `<|im_end|>` ends a turn. In a tool's answer it must be ordinary text:
otherwise the author of a web page could insert a user turn.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from tokenizers import Tokenizer

from ppojob_trainer.data.chat import ChatTokenizer


class MessageText:
    """Encodes pieces of template text with bodies, the texts of messages, between them.

    Control tokens are special tokens, and other added tokens in the template's source, such as
    Qwen's `</tool_response>`. Only their texts in pieces become these tokens.

    Attributes:
        special: texts of the special tokens, by id.
        control: texts of all control tokens, by id.
    """

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat
        self._without: Tokenizer | None = None
        template, _ = chat.template
        self.special = {i: one.content for i, one in chat.added_tokens.items() if one.special}
        self.control = self.special | {
            i: one.content
            for i, one in chat.added_tokens.items()
            if one.content in template and one.content.strip()
        }
        texts = sorted(self.control.values(), key=len, reverse=True)
        self._ids = {text: i for i, text in self.control.items()}
        self._mark = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def encode(self, pieces: Sequence[str], bodies: Sequence[str]) -> list[int]:
        """Return the token ids of (bodies + 1,) pieces around (bodies,) bodies.

        If no body has a control token they are those of the whole text, in which a token may span
        a piece and a body, as in the model's training data.
        """
        parts = zip(pieces, [*bodies, ""], strict=True)
        ids = self._chat.encode("".join(piece + body for piece, body in parts))
        wanted = [self._ids[mark] for piece in pieces for mark in self._mark.findall(piece)]
        if [i for i in ids if i in self.control] == wanted:
            return ids
        return self._encode_apart(pieces, bodies)

    def find(self, text: str, marks: Collection[str]) -> re.Match[str] | None:
        """Find the first of these control tokens in a text."""
        return next((match for match in self.marks(text) if match[0] in marks), None)

    def marks(self, text: str) -> Iterator[re.Match[str]]:
        """Find all control tokens in a text."""
        return self._mark.finditer(text)

    def at(self, text: str, place: int) -> str:
        """Return the control token at a position of a text; empty if there is none."""
        found = self._mark.match(text, place)
        return "" if found is None else found[0]

    def _encode_apart(self, pieces: Sequence[str], bodies: Sequence[str]) -> list[int]:
        """Encode part by part between the control tokens of the pieces."""
        ids: list[int] = []
        part = ""
        for piece, body in zip(pieces, [*bodies, ""], strict=True):
            done = 0
            for mark in self._mark.finditer(piece):
                ids += self._ordinary(part + piece[done : mark.start()])
                ids.append(self._ids[mark[0]])
                part, done = "", mark.end()
            part += piece[done:] + body
        return ids + self._ordinary(part)

    def _ordinary(self, text: str) -> list[int]:
        """Return the ids of a text without any control token."""
        if self._without is None:
            self._without = self._chat.without_tokens(self.control.values())
        ids: list[int] = self._without.encode(text, add_special_tokens=False).ids
        if self.control.keys().isdisjoint(ids):
            return ids
        # The text of a control token may also be in the ordinary vocabulary.
        parts = self._mark.sub(lambda mark: mark[0][0] + "\0" + mark[0][1:], text).split("\0")
        apart = [self._without.encode(part, add_special_tokens=False).ids for part in parts]
        return [i for part in apart for i in part if i not in self.control]
