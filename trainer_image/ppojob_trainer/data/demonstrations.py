"""Demonstrations: conversations whose assistant turns are trained on (SFT data).

A row becomes the tokens that a rollout would have produced: the prompt with the header of the next
turn; that turn and its end token, as the policy would generate them; the tokens until its next
turn; and so on. So training and generation use the same tokens, with any chat template that
supports rows of several turns (`turns`). Readers raise `BadCell` for the first cell that is missing
or invalid.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import msgspec

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, Tools
from ppojob_trainer.data.columns import as_prompt, cell_of, conversation, mapping_of
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.media.images import LaterImage, images_in, packed, with_parts
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.data.prompt_store import AnswerPart, Prompt, PromptRow
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.data.turn_check import check_template
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.data.written_turns import CALLS, check_calls, needs_template, written_turn
from ppojob_trainer.json_value import Json

Message = Mapping[str, Json]
ASSISTANT = "assistant"
LOSS_MASK = "loss_mask"
"""Entry of a message, by verl's name: 0 for an assistant turn that is not trained on."""
_CACHED, _CHECKED = 64, 16
"""Limits for the sets of variables in rows: templates cached, and templates checked."""


class GivenRow(NamedTuple):
    """A row, and the messages of each given answer."""

    row: PromptRow
    answers: Sequence[Sequence[Message]]

    @classmethod
    def of(
        cls, prompt: Prompt, *answers: Sequence[Message], ground_truth: Json = None
    ) -> "GivenRow":
        """Build a row of a prompt; its ground truth is a label or a margin."""
        return cls(PromptRow(-1, (), prompt, "", ground_truth, {}), answers)


def read_demonstration(row: Row, spec: DataSpec) -> GivenRow:
    """Read a demonstration, whose answer begins at the first assistant message."""
    if spec.answer_key is not None:
        prompt = as_prompt(cell_of(row, spec.prompt_key, spec), spec.prompt_key, spec)
        answer = cell_of(row, spec.answer_key, spec)
        if not isinstance(answer, str):
            why, allowed = "the answer that is trained on is text", "text"
            raise BadCell(spec.answer_key, shown(answer), why, allowed)
        messages: list[Message] = [{"role": ASSISTANT, "content": answer}]
    else:
        prompt, messages = _split(cell_of(row, spec.prompt_key, spec), spec.prompt_key)
    return GivenRow.of(prompt, messages)


def read_guidance(row: Row, key: str) -> list[Sequence[Message]]:
    """Read the given responses of a row, which join the sampled ones; one message each."""
    cell = cell_of(row, key)
    given = cell if isinstance(cell, list) else [] if cell is None else [cell]
    found: list[Sequence[Message]] = []
    for number, one in enumerate(given):
        place = f"{key}[{number}]" if isinstance(cell, list) else key
        given_message = {"role": ASSISTANT, "content": one} if isinstance(one, str) else one
        message = mapping_of(given_message if isinstance(given_message, dict) else None, place)
        content = message.get("content")
        is_text = isinstance(content, str) and content
        if message.get("role") != ASSISTANT or not is_text or message.get(CALLS):
            why = "a response is one assistant message, without calls"
            allowed = 'text, or {"role": "assistant", "content": "..."}'
            raise BadCell(place, shown(one), why, allowed)
        found.append([{**message, LOSS_MASK: 1}])
    return found


def _split(cell: object, column: str) -> tuple[Prompt, list[Message]]:
    """Split a conversation before the first assistant message."""
    where = "spec.data.answerKey (of data.demonstrations: demonstrationAnswerKey)"
    if isinstance(cell, str):
        why, allowed = "it has no answer", f"chat messages, or its column in {where}"
        raise BadCell(column, shown(cell), why, allowed)
    messages = conversation(cell, column, calls=True)
    for index, message in enumerate(messages):
        check_message(message, messages[index - 1] if index else None, f"{column}[{index}]")
    first = next((i for i, m in enumerate(messages) if m["role"] == ASSISTANT), None)
    if first is None:
        roles = ", ".join(str(message["role"]) for message in messages)
        why = "it has no assistant message to train on"
        raise BadCell(f"{column}.role", roles, why, f"at least one, or its column in {where}")
    return messages[:first], list(messages[first:])


def check_message(message: Message, before: Message | None, place: str) -> None:
    """Refuse a message that no rollout could produce, or whose mask is invalid."""
    is_assistant = message["role"] == ASSISTANT
    if is_assistant and (before is None or before["role"] == ASSISTANT):
        got = f"{ASSISTANT} {'first' if before is None else 'twice in a row'}"
        why = "an assistant message answers another role"
        allowed = "a message of another role before it"
        raise BadCell(f"{place}.role", got, why, allowed)
    if is_assistant:
        check_calls(message, place)
    mask = message.get(LOSS_MASK, int(is_assistant))
    if mask not in ((0, 1) if is_assistant else (0,)):
        why = "loss_mask applies to assistant messages, and others are never trained on"
        allowed = "0 or 1 for assistant messages, else 0 or none"
        raise BadCell(f"{place}.{LOSS_MASK}", shown(mask), why, allowed)


def refuse_calls(messages: Sequence[Message], column: str) -> None:
    """Refuse messages with tool calls."""
    for message in messages:
        if message.get(CALLS):
            why = "calls are supported only in answers of sft, dpo and kto"
            got = shown(message[CALLS])
            raise BadCell(f"{column}.{CALLS}", got, why, "calls as text in content")


def trimmed(answer: Sequence[AnswerPart], limit: int) -> tuple[AnswerPart, ...]:
    """Return the first `limit` tokens of an answer, up to the last trained one; maybe none."""
    parts: list[AnswerPart] = []
    for part in answer:
        parts.append(part._replace(tokens=part.tokens[:limit]))
        limit -= len(parts[-1].tokens)
    while parts and not (parts[-1].is_trained and parts[-1].tokens):
        parts.pop()
    return tuple(parts)


class Demonstrations:
    """Tokenises answers for training."""

    trim = staticmethod(trimmed)

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat
        self._template = lru_cache(maxsize=_CACHED)(
            lambda variables: TurnTemplate(chat, msgspec.json.decode(variables))
        )
        self._checked: set[tuple[bytes, bool]] = set()

    def tokens(
        self,
        prompt: Prompt,
        ids: list[int],
        answers: Sequence[Sequence[Message]],
        inputs: TemplateInputs,
        later: Sequence[bytes] = (),
    ) -> tuple[list[int], list[list[AnswerPart]]]:
        """Tokenise the answers to a prompt; messages after the last assistant turn are dropped.

        Returns the token ids of the prompt, unchanged, and the parts of each answer by author.
        `later` are the images after the prompt, at the marks of the answer.
        """
        return ids, [self._answer(prompt, messages, inputs, later) for messages in answers]

    def _answer(
        self,
        prompt: Prompt,
        messages: Sequence[Message],
        inputs: TemplateInputs,
        later: Sequence[bytes],
    ) -> list[AnswerPart]:
        if isinstance(prompt, str):
            (message,) = messages
            end = self._chat.eos_token_ids[:1]
            return [AnswerPart((*self._chat.encode(str(message["content"])), *end), True)]
        key = msgspec.json.encode(inputs.variables)
        template = self._template(key)
        parts: list[AnswerPart] = []
        between: Sequence[Message] = []
        left = list(later)
        calls = False
        for is_assistant, group in groupby(messages, lambda one: one["role"] == ASSISTANT):
            turns = list(group)
            if not is_assistant:
                between = with_parts(turns, left) if left else turns
                continue
            if between:
                self._check_turns(key, template, inputs.tools if calls else ())
                tools = inputs.tools
                if not calls and template.suffix(between, tools) != template.suffix(between):
                    why = "the chat template repeats the tools before later turns"
                    raise BadChatTemplate(why, why)
                given = template.delta(between, inputs.tools, written=parts[-1].tokens)
                files = [left.pop(0) for _ in range(images_in(between))]
                parts.append(self._given(given, files, sum(len(one.tokens) for one in parts)))
            (message,) = turns
            calls = calls or bool(message.get(CALLS))
            if needs_template(message):
                ids = written_turn(template, message, inputs.tools)
            else:
                ids = template.turn(str(message["content"]))
            parts.append(AnswerPart(tuple(ids), bool(message.get(LOSS_MASK, True))))
        return parts

    def _given(self, ids: list[int], files: Sequence[bytes], start: int) -> AnswerPart:
        """Return the part between two turns, with its images; `start` is its first position."""
        form = self._chat.images
        if form is None or not files:
            return AnswerPart(tuple(ids), False)
        if ids.count(form.token) != len(files):
            why = f"of {len(files)} images after an answer it shows {ids.count(form.token)}"
            raise BadChatTemplate(why, why)
        media = packed(files)
        ids = form.expanded(ids, media)
        starts = [start + place for place, *_ in form.places(ids, media)]
        later = tuple(LaterImage(*one) for one in zip(starts, files, strict=True))
        return AnswerPart(tuple(ids), False, later)

    def _check_turns(self, key: bytes, template: TurnTemplate, tools: Tools) -> None:
        """Check once that turns can be appended as the template renders the whole."""
        if (key, bool(tools)) not in self._checked and len(self._checked) < _CHECKED:
            self._checked.add((key, bool(tools)))
            if (refusal := check_template(template, tools)) is not None:
                raise BadChatTemplate(refusal)
