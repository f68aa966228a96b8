"""Gemma 4: `<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:5,KEY:[true,{KEY:null}]}<tool_call|>`.

https://ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4
"""

import re

from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools, blocks, encoded
from ppojob_trainer.json_value import Json

_START, _END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_CALL = re.compile(r"call:(\w+)\{(.*)\}", re.DOTALL)
_KEY = re.compile(r'\s*(?:<\|"\|>)?(\w+)(?:<\|"\|>)?\s*:')
_BARE = re.compile(r"[^,}\]]*")
_INTEGER = re.compile(r"[-+]?\d{1,300}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\d{1,300}\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}
_DEEPEST = 100


def gemma(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn, decoded with its special tokens."""
    return tuple(_call(block) for block in blocks(text, _START, _END))


def _call(block: str) -> Call | BadCall:
    found = _CALL.fullmatch(block.rpartition(_START)[2])
    reader = _Reader("" if found is None else found[2])
    arguments = reader.items(depth=0)
    if found is None or reader.rest.strip():
        return BadCall("a call that is not call:NAME{KEY:VALUE,...}")
    return Call(found[1], encoded(arguments))


class _Reader:
    """Parses arguments as far as possible."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def rest(self) -> str:
        """Return the text that is not parsed yet."""
        return self._text[self._at :]

    def items(self, depth: int) -> dict[str, Json]:
        """Parse `KEY:VALUE,...` up to a closing brace or the end."""
        found: dict[str, Json] = {}
        while (key := _KEY.match(self._text, self._at)) is not None:
            self._at = key.end()
            found[key[1]] = self._value(depth)
            if not self._skip(","):
                break
        return found

    def _value(self, depth: int) -> Json:
        if self._skip(_QUOTE):
            end = self._text.find(_QUOTE, self._at)
            end = len(self._text) if end < 0 else end
            text = self._text[self._at : end]
            self._at = end + len(_QUOTE)
            return text
        if depth < _DEEPEST and self._skip("{"):
            found = self.items(depth + 1)
            self._skip("}")
            return found
        if depth < _DEEPEST and self._skip("["):
            return self._list(depth + 1)
        bare = _BARE.match(self._text, self._at)
        assert bare is not None, "it matches the empty text"
        self._at = bare.end()
        return _bare_value(bare[0].strip())

    def _list(self, depth: int) -> list[Json]:
        found: list[Json] = []
        while self._at < len(self._text) and not self._skip("]"):
            found.append(self._value(depth))
            if not self._skip(","):
                self._skip("]")
                break
        return found

    def _skip(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True


def _bare_value(text: str) -> Json:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) and float(text) < float("inf") else text
