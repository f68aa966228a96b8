"""Demonstrations: conversations whose assistant turns the policy learns to write (SFT data).

A row becomes the tokens that a rollout would have produced: the prompt as an engine gets it, with
the header of the next turn; that turn and its end token, as the policy would have generated them;
the tokens until its next turn; and so on. So training and generation use the same tokens, with any
chat template that supports rows of several turns (`turns`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby

import msgspec

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, Tools
from ppojob_trainer.data.columns import (
    EXTRA_COLUMN,
    as_prompt,
    cell_of,
    conversation,
    difficulty_of,
    mapping_of,
)
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.media.pictures import LaterPicture, packed, pictures_in, with_parts
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
"""Entry of a message, by verl's name: 0 if its turn is read but not trained on."""
_KEPT, _CHECKED = 64, 16
"""Limits for the sets of variables in rows: templates kept, and templates checked."""


def read_demonstration(
    row: Row, spec: DataSpec
) -> tuple[PromptRow, float, list[Sequence[Message]]]:
    """Read a demonstration: the prompt, its difficulty, and the messages from the answer on.

    Raises:
        BadCell: a cell is missing or wrong; the first one.
    """
    if spec.answer_key is not None:
        prompt = as_prompt(cell_of(row, spec.prompt_key, spec), spec.prompt_key, spec)
        answer = cell_of(row, spec.answer_key, spec)
        if not isinstance(answer, str):
            why, allowed = "the answer that is trained on is text", "text"
            raise BadCell(spec.answer_key, shown(answer), why, allowed)
        messages: list[Message] = [{"role": ASSISTANT, "content": answer}]
    else:
        prompt, messages = _parted(cell_of(row, spec.prompt_key, spec), spec.prompt_key)
    return *given_row(row, prompt, spec), [messages]


def read_guidance(row: Row, key: str) -> list[Sequence[Message]]:
    """Read the given responses of a row that train beside sampled ones, one message each.

    Raises:
        BadCell: a cell is missing or wrong; the first one.
    """
    cell = cell_of(row, key)
    given = cell if isinstance(cell, list) else [] if cell is None else [cell]
    found: list[Sequence[Message]] = []
    for number, one in enumerate(given):
        place = f"{key}[{number}]" if isinstance(cell, list) else key
        said = {"role": ASSISTANT, "content": one} if isinstance(one, str) else one
        message = mapping_of(said if isinstance(said, dict) else None, place)
        content = message.get("content")
        is_text = isinstance(content, str) and content
        if message.get("role") != ASSISTANT or not is_text or message.get(CALLS):
            why = "a response is one turn of the assistant, without calls"
            allowed = 'text, or {"role": "assistant", "content": "..."}'
            raise BadCell(place, shown(one), why, allowed)
        found.append([{**message, LOSS_MASK: 1}])
    return found


def given_row(row: Row, prompt: Prompt, spec: DataSpec) -> tuple[PromptRow, float]:
    """Return a prompt with given answers, and its difficulty.

    Raises:
        BadCell: a curriculum needs a difficulty that is missing.
    """
    difficulty = 0.0
    if spec.curriculum is not None:
        info = mapping_of(row.get(EXTRA_COLUMN), EXTRA_COLUMN)
        difficulty = difficulty_of(row, info, spec.curriculum.key)
    return PromptRow(-1, (), prompt, "", None, {}), difficulty


def _parted(cell: object, column: str) -> tuple[Prompt, list[Message]]:
    """Split a conversation before the assistant's first turn."""
    if isinstance(cell, str):
        where = "spec.data.answerKey (of data.demonstrations: demonstrationAnswerKey)"
        why, allowed = "it has no answer", f"chat messages, or its column in {where}"
        raise BadCell(column, shown(cell), why, allowed)
    messages = conversation(cell, column, calls=True)
    for index, message in enumerate(messages):
        check_message(message, messages[index - 1] if index else None, f"{column}[{index}]")
    first = next((i for i, m in enumerate(messages) if m["role"] == ASSISTANT), None)
    if first is None:
        roles = ", ".join(str(message["role"]) for message in messages)
        why, allowed = "it has no assistant message to train on", "one at least"
        raise BadCell(f"{column}.role", roles, why, allowed)
    return messages[:first], list(messages[first:])


def check_message(message: Message, before: Message | None, place: str) -> None:
    """Refuse a message that no rollout could produce, or that has nothing to learn.

    Raises:
        BadCell: it is such a message.
    """
    is_assistant = message["role"] == ASSISTANT
    if is_assistant and (before is None or before["role"] == ASSISTANT):
        got = f"{ASSISTANT} {'first' if before is None else 'twice in a row'}"
        why, allowed = (
            "an assistant message answers another role",
            "a message of another role before it",
        )
        raise BadCell(f"{place}.role", got, why, allowed)
    if is_assistant:
        check_calls(message, place)
    mask = message.get(LOSS_MASK, int(is_assistant))
    if mask not in ((0, 1) if is_assistant else (0,)):
        why = "loss_mask applies to assistant messages, and others are never trained on"
        allowed = "0 or 1 of the assistant, else 0, or none"
        raise BadCell(f"{place}.{LOSS_MASK}", shown(mask), why, allowed)


def refuse_calls(messages: Sequence[Message], column: str) -> None:
    """Refuse tool calls if the template gets a conversation unchanged.

    Raises:
        BadCell: a message has some.
    """
    for message in messages:
        if message.get(CALLS):
            why = "calls are learnt in answers of sft, dpo and kto, and read nowhere else"
            got = shown(message[CALLS])
            raise BadCell(f"{column}.{CALLS}", got, why, "calls as text in content")


def learnt(answer: Sequence[AnswerPart], limit: int) -> tuple[AnswerPart, ...]:
    """Return the first `limit` tokens of an answer, up to the last trained one; maybe none."""
    parts: list[AnswerPart] = []
    for part in answer:
        parts.append(part._replace(tokens=part.tokens[:limit]))
        limit -= len(parts[-1].tokens)
    while parts and not (parts[-1].is_trained and parts[-1].tokens):
        parts.pop()
    return tuple(parts)


class Demonstrations:
    """Tokenises answers."""

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat
        self._template = lru_cache(maxsize=_KEPT)(self._of_variables)
        self._checked: set[tuple[bytes, bool]] = set()

    def tokens(
        self,
        prompt: Prompt,
        ids: list[int],
        answers: Sequence[Sequence[Message]],
        told: TemplateInputs,
        later: Sequence[bytes] = (),
    ) -> tuple[list[int], list[list[AnswerPart]]]:
        """Return the ids of the prompt, and those of each answer by author.

        Text after the last answer is dropped. ``told`` is the template's input besides messages,
        and ``later`` are the pictures after the prompt, which an answer shows at its marks.

        Raises:
            BadChatTemplate: the template has no such turns, or writes a turn in another way if
                others follow.
        """
        return ids, [self._answer(prompt, messages, told, later) for messages in answers]

    def kept(self, answer: Sequence[AnswerPart], limit: int) -> tuple[AnswerPart, ...]:
        """Return the trained part of the first `limit` tokens of an answer; maybe none."""
        return learnt(answer, limit)

    def _answer(
        self,
        prompt: Prompt,
        messages: Sequence[Message],
        told: TemplateInputs,
        later: Sequence[bytes],
    ) -> list[AnswerPart]:
        if isinstance(prompt, str):
            (said,) = messages
            end = self._chat.eos_token_ids[:1]
            return [AnswerPart((*self._chat.encode(str(said["content"])), *end), True)]
        key = msgspec.json.encode(told.variables)
        template = self._template(key)
        parts: list[AnswerPart] = []
        between: Sequence[Message] = []
        left = list(later)
        calls = False
        for is_assistant, group in groupby(messages, lambda one: one["role"] == ASSISTANT):
            spoken = list(group)
            if not is_assistant:
                between = with_parts(spoken, left) if left else spoken
                continue
            if between:
                self._check_turns(key, template, told.tools if calls else ())
                if not calls:
                    _check_tools(template, between, told.tools)
                given = template.delta(between, told.tools, written=parts[-1].tokens)
                shown = [left.pop(0) for _ in range(pictures_in(between))]
                parts.append(self._given(given, shown, sum(len(one.tokens) for one in parts)))
            (said,) = spoken
            calls = calls or bool(said.get(CALLS))
            if needs_template(said):
                turn = written_turn(template, said, told.tools)
            else:
                turn = template.turn(str(said["content"]))
            parts.append(AnswerPart(tuple(turn), bool(said.get(LOSS_MASK, True))))
        return parts

    def _given(self, ids: list[int], shown: Sequence[bytes], start: int) -> AnswerPart:
        """Return the tokens between two turns, with pictures; `start` is the first place."""
        form = self._chat.pictures
        if form is None or not shown:
            return AnswerPart(tuple(ids), False)
        if ids.count(form.token) != len(shown):
            told = f"of {len(shown)} pictures behind an answer it shows {ids.count(form.token)}"
            raise BadChatTemplate(told, told)
        files = packed(shown)
        ids = form.expanded(ids, files)
        begun = [start + place for place, *_ in form.places(ids, files)]
        later = tuple(LaterPicture(*one) for one in zip(begun, shown, strict=True))
        return AnswerPart(tuple(ids), False, later)

    def _of_variables(self, variables: bytes) -> TurnTemplate:
        return TurnTemplate(self._chat, msgspec.json.decode(variables))

    def _check_turns(self, key: bytes, template: TurnTemplate, tools: Tools) -> None:
        """Check once that a row of several turns grows as the template writes the whole."""
        if (key, bool(tools)) not in self._checked and len(self._checked) < _CHECKED:
            self._checked.add((key, bool(tools)))
            if (refusal := check_template(template, tools)) is not None:
                raise BadChatTemplate(refusal)


def _check_tools(template: TurnTemplate, between: Sequence[Message], tools: Tools) -> None:
    """Refuse a template that shows tools before later turns: the prompt has them already."""
    if tools and template.suffix(between, tools) != template.suffix(between):
        told = "the chat template shows the tools in front of later turns, too"
        raise BadChatTemplate(told, told)
