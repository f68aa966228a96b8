"""Structured output: masks against a literal reference, and rows of the Hugging Face engine."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import tiny_jobs
import torch
from engine_phase import generate
from refused_jobs import edit
from tiny_models import NAMES, TWO_LAYERS, make_model, save_tokenizer

from ppojob_api.v1alpha1.rollout import StructuredOutputSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Request, SamplingParams
from ppojob_trainer.rollout.structured_output import (
    Grammar,
    GrammarError,
    GrammarMatcher,
    grammar_of,
)

TOKENS = [*NAMES, "ye", "yes", "s, ", "no", "12", '{"', '":']
END = NAMES.index("<|im_end|>")
CHOICES = ("yes", "yes, yes", "no", "12")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMS = {
    "yes(, yes)?|no|12": {"choices": CHOICES},
    "[a-c]{2,5}( [0-9]+)*": {"regex": "[a-c]{2,5}( [0-9]+)*"},
    '{"a":(0|-?[1-9][0-9]*)}': {"json_schema": json.dumps(SCHEMA)},
    r"\(*x\)*": {"grammar": 'start: "(" start ")" | "x"'},
}
"""Regular expressions that the responses of a form match, those of the grammar among others."""


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatTokenizer]:
    """A tokenizer with a token a character, and some of several that overlap."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, names=TOKENS)
    edit(folder / "tokenizer.json", tiny_jobs.WITH_BYTES)
    with ChatTokenizer(folder) as opened:
        yield opened


def text(tokens: Sequence[int]) -> str:
    return "".join(TOKENS[token] for token in tokens)


def allowed(matcher: GrammarMatcher) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(matcher.allowed(16), bitorder="little")).tolist())


def test_a_mask_has_the_tokens_that_keep_a_choice_possible(chat: ChatTokenizer) -> None:
    """Behind each token of a choice; of certain letters only the token of the tokenizer is kept."""
    grammar = grammar_of(StructuredOutputSpec(choices=CHOICES), chat)
    certain, open_, waiting = 0, 0, [()]
    while waiting:
        before = waiting.pop()
        said = text(before)
        words = {n for n in range(3, len(TOKENS)) if _can_begin(said + TOKENS[n])}
        ends = {END} if said in CHOICES else set()
        found = allowed(replace(grammar, before=before).matcher())
        if len({TOKENS[n][0] for n in words} | ends) > 1:
            assert found == words | ends
            open_ += 1
        else:
            assert found
            assert found <= words | ends
            certain += 1
        waiting += [(*before, token) for token in found - ends]
    assert min(certain, open_) > 3


def _can_begin(said: str) -> bool:
    return any(choice.startswith(said) for choice in CHOICES)


def test_undone_tokens_leave_no_trace(chat: ChatTokenizer) -> None:
    """An end token too, behind which nothing can come, and whose text may go on."""
    for said in ("12", "yes"):
        matcher = grammar_of(StructuredOutputSpec(choices=CHOICES), chat).matcher()
        masks = []
        tokens = [*map(TOKENS.index, said), END]
        for token in tokens:
            masks.append(allowed(matcher))
            matcher.advance([token])
        assert matcher.has_ended
        for count in range(1, len(tokens) + 1):
            matcher.rollback(count)
            assert not matcher.has_ended
            assert allowed(matcher) == masks[-count]
            matcher.advance(tokens[-count:])
    matcher.rollback(len(tokens))
    assert matcher.count_allowed([*map(TOKENS.index, "yesno")]) == 3


def engine() -> HuggingFaceEngine:
    model = make_model(**{**TWO_LAYERS, "vocab_size": 120, "initializer_range": 0.1})
    return HuggingFaceEngine(model, max_model_tokens=64, max_sequences=64)


WAYS = [
    SamplingParams(1.0, 1.0, -1, 16, (END,)),
    SamplingParams(0.7, 0.9, 20, 16, (END,), min_p=0.01, repetition_penalty=1.3),
    SamplingParams(0.0, 1.0, -1, 16, (END,)),
]


def requests(grammar: Grammar) -> list[Request]:
    return [
        Request(f"{n}", (5, 6, 7 + n % 5), replace(WAYS[n % 3], grammar=grammar), seed=n)
        for n in range(24)
    ]


@pytest.mark.parametrize("expression", FORMS)
def test_rows_have_the_form(expression: str, chat: ChatTokenizer) -> None:
    """However they are drawn, alone or with rows that have none, and in two parts as in one."""
    grammar = grammar_of(StructuredOutputSpec(**FORMS[expression]), chat)
    rows = requests(grammar)
    done = generate(engine(), rows)
    free = [replace(row, sampling=replace(row.sampling, grammar=None)) for row in rows[1::2]]
    mixed = [row for pair in zip(rows[::2], free, strict=True) for row in pair]
    assert [d.tokens for d in generate(engine(), mixed)[::2]] == [d.tokens for d in done[::2]]
    ended = [d for d in done if d.finish_reason == "stop"]
    assert ended
    for one in ended:
        assert one.tokens[-1] == END
        assert re.fullmatch(expression, text(one.tokens[:-1]))
    for one in done:
        matcher = grammar.matcher()
        for token in one.tokens:
            assert token in allowed(matcher)
            matcher.advance([token])
    for row, one in zip(rows, done, strict=True):
        if len(one.tokens) > 2 and row.sampling.temperature == 0.0:
            begun = one.tokens[:2]
            sampling = replace(row.sampling, grammar=replace(grammar, before=begun), max_tokens=14)
            rest = replace(row, prompt=(*row.prompt, *begun), sampling=sampling)
            assert generate(engine(), [rest])[0].tokens == one.tokens[2:]


def test_logprobs_are_those_of_the_allowed_tokens(chat: ChatTokenizer) -> None:
    """Those of a forward over the whole text, normalised over the allowed tokens."""
    grammar = grammar_of(StructuredOutputSpec(regex="[a-c]{2,5}( [0-9]+)*"), chat)
    model = make_model(**{**TWO_LAYERS, "vocab_size": 120, "initializer_range": 0.1})
    rows = [row for row in requests(grammar) if row.sampling == replace(WAYS[0], grammar=grammar)]
    for row, one in zip(rows, generate(engine(), rows), strict=True):
        ids = torch.tensor([[*row.prompt, *one.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1].double()
        matcher = grammar.matcher()
        for place, token in enumerate(one.tokens):
            kept = logits[place, sorted(allowed(matcher))].logsumexp(-1)
            assert one.logprobs[place] == pytest.approx(
                float(logits[place, token] - kept), abs=1e-5
            )
            matcher.advance([token])


def test_a_dead_end_is_an_error(chat: ChatTokenizer) -> None:
    """The tokenizer has no byte of this letter."""
    grammar = grammar_of(StructuredOutputSpec(regex="aé"), chat)
    with pytest.raises(
        GrammarError, match=r"^spec\.rollout\.structuredOutput: got a response that"
    ):
        generate(engine(), requests(grammar))
