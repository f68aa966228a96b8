"""Structured output: which tokens may come next in a response of a given form (ADR 121).

llguidance compiles the form, for both engines and for `ppojob validate`. Its limits are on work,
never on time, so a mask is a function of the form and the response so far.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import llguidance
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.rollout import StructuredOutputSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.errors import PPOJobError

_FIELD: Final = "spec.rollout.structuredOutput"
_OF_REQUESTS: Final = "response_format"
_QUIET: Final = 0


class GrammarError(PPOJobError):
    """A response can neither continue nor end in its form, or the tokenizer can write none."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of responses, in llguidance's notation, over the tokens of a tokenizer.

    End tokens may follow wherever the form is complete. `before` are tokens of the same response
    that an earlier request generated, and `setting` is what asks for the form, for errors.
    """

    text: str
    tokenizer: LLTokenizer
    before: tuple[int, ...] = ()
    setting: str = _FIELD

    def matcher(self) -> "GrammarMatcher":
        """Return a matcher of one response, after `before`."""
        return GrammarMatcher(self)


class GrammarMatcher:
    """Matcher of one response, token by token."""

    def __init__(self, grammar: Grammar) -> None:
        self._end_tokens = frozenset(grammar.tokenizer.eos_tokens)
        self._setting = grammar.setting
        self._matcher = LLMatcher(grammar.tokenizer, grammar.text, log_level=_QUIET)
        self.has_ended = False
        """Whether an end token was the last."""
        self.advance(grammar.before)

    def allowed(self, size: int) -> NDArray[np.uint8]:
        """Return a bit per token id, 1 if it may come next: `(size,)` bytes, lowest first.

        Raises:
            GrammarError: no token may, or the form is too complex for llguidance.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if wrong := self._matcher.get_error():
            raise GrammarError(
                f"{self._setting}: got a response that can neither continue nor end: "
                f"{_first_line(wrong)}; a form that the tokenizer can write"
            )
        mask = np.zeros(size, dtype=np.uint8)
        mask[: len(bits)] = bits[:size]
        return mask

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume tokens that `allowed` permits one after the other."""
        for token in tokens:
            self.has_ended = token in self._end_tokens
            if not self.has_ended:
                self._matcher.consume_token(token)

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens - self.has_ended)
        self.has_ended = False

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may follow one after the other."""
        return self._matcher.validate_tokens(list(tokens))


def grammar_of(spec: StructuredOutputSpec, chat: ChatTokenizer) -> Grammar:
    """Return the grammar of a form that `check_structured_output` has accepted."""
    return Grammar(_text(spec), _tokenizer(chat))


def json_grammar(schema: str, chat: ChatTokenizer) -> Grammar:
    """Return the grammar of JSON of a schema that llguidance accepts.

    Raises:
        GrammarError: the bytes of the tokenizer's tokens are unknown.
    """
    try:
        form = LLMatcher.grammar_from_json_schema(schema)
        return Grammar(form, _tokenizer(chat), setting=_OF_REQUESTS)
    except ValueError:
        raise GrammarError(
            f"{_OF_REQUESTS}: got a tokenizer that llguidance cannot read: it needs the bytes of "
            "each token; a decoder ByteLevel or ByteFallback"
        ) from None


def check_structured_output(
    spec: StructuredOutputSpec | None, chat: ChatTokenizer, folder: Path
) -> Iterator[Problem]:
    """Compile a form over the tokens of a tokenizer, in `folder`; yields problems."""
    if spec is None or not chat.eos_token_ids:
        return
    ((name, value),) = spec.model_dump(exclude_none=True).items()
    where = f"{_FIELD}.{name}"

    def bad(why: str) -> Problem:
        allowed = "a form that llguidance can compile (docs/recipes.md#structured-output)"
        return Problem(where, shown(value), why, allowed, ReasonCode.BAD_FORM)

    try:
        text = _text(spec)
    except ValueError as error:
        yield bad(_first_line(str(error)))
        return
    try:
        grammar = Grammar(text, _tokenizer(chat))
    except ValueError:
        yield Problem(
            str(folder / "tokenizer.json"),
            "a tokenizer that llguidance cannot read",
            f"{_FIELD} needs the bytes of each token",
            "a decoder ByteLevel or ByteFallback, as most have, or remove the field",
            ReasonCode.BAD_FORM,
        )
        return
    if wrong := LLMatcher.validate_grammar(grammar.text, grammar.tokenizer):
        yield bad(_first_line(wrong))
        return
    try:
        grammar.matcher().allowed(0)
    except GrammarError:
        yield bad("no token can begin it")


@lru_cache(maxsize=4)  # programs bring a form each turn
def _tokenizer(chat: ChatTokenizer) -> LLTokenizer:
    """Return llguidance's tokenizer; a ValueError if the bytes of tokens are unknown."""
    return LLTokenizer(chat.source, eos_token=list(chat.eos_token_ids))


def _text(spec: StructuredOutputSpec) -> str:
    """Return a form in llguidance's notation; ValueError if it is no JSON, Lark or GBNF."""
    if spec.regex is not None:
        return LLMatcher.grammar_from_regex(spec.regex)
    if spec.choices is not None:
        return llguidance.grammar_from("choice", json.dumps(spec.choices))
    if spec.json_schema is not None:
        return LLMatcher.grammar_from_json_schema(json.dumps(json.loads(spec.json_schema)))
    assert spec.grammar is not None, "one of them is given"
    return llguidance.grammar_from("grammar", spec.grammar)


def _first_line(message: str) -> str:
    """Return the error of a message of llguidance, without drawings and states."""
    lines = [line.strip() for line in message.splitlines()]
    errors = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    return next(errors, lines[0])
