"""Preference data: pairs of a chosen and a rejected answer, or answers labelled good or bad.

Pairs train DPO and reward models, labelled answers KTO. Readers raise `BadCell` for the first cell
that is missing or invalid.
"""

import re
from collections.abc import Sequence
from typing import Final

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, up_to_padding
from ppojob_trainer.data.columns import as_prompt, cell_of, conversation
from ppojob_trainer.data.demonstrations import (
    ASSISTANT,
    GivenRow,
    Message,
    check_message,
    refuse_calls,
    trimmed,
)
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.data.prompt_store import AnswerPart, Prompt
from ppojob_trainer.data.template_renderer import accepted

_SPEAKERS: Final = {"Human": "user", "Assistant": ASSISTANT}
_TURN: Final = re.compile(rf"\n\n({'|'.join(_SPEAKERS)}):")
"""The beginning of a turn in the texts of Anthropic's HH-RLHF."""

_ANY_USER: Message = {"role": "user"}
_MOST: Final = 1_000_000
"""Largest margin, like coefficients of the manifest."""
_DUMMY = AnswerPart((0,), True)
"""A token after a scored text: its value comes from the state before it, and it is not read."""


def read_pair(row: Row, spec: DataSpec, *, is_scored: bool = False) -> GivenRow:
    """Read a pair, the chosen answer first.

    Tool calls are allowed only in answers whose tokens are trained on: only their rendering is
    checked.
    """
    keys = spec.chosen_key, spec.rejected_key
    chosen, rejected = (_messages(cell_of(row, key, spec), key) for key in keys)
    prompt: Prompt
    if chosen[0]["role"] == rejected[0]["role"] == ASSISTANT:
        prompt = as_prompt(cell_of(row, spec.prompt_key, spec), spec.prompt_key, spec)
    else:
        common = _common(chosen, rejected, spec)
        prompt = list(map(dict, chosen[:common]))
        chosen, rejected = chosen[common:], rejected[common:]
    if not isinstance(prompt, str):
        refuse_calls(prompt, spec.prompt_key)
    for key, answer in zip(keys, (chosen, rejected), strict=True):
        if is_scored:
            refuse_calls(answer, key)
        _check_turns(answer, key, prompt)
    margin = None if spec.margin_key is None else _margin(row, spec.margin_key, spec)
    return GivenRow.of(prompt, chosen, rejected, ground_truth=margin)


def _margin(row: Row, key: str, spec: DataSpec) -> float:
    margin = cell_of(row, key, spec)
    if isinstance(margin, int | float) and not isinstance(margin, bool) and 0 <= margin <= _MOST:
        return float(margin)
    why, allowed = "it is the margin of the rewards", f"a number from 0 to {_MOST}"
    raise BadCell(key, shown(margin), why, allowed)


def read_labelled(row: Row, spec: DataSpec) -> GivenRow:
    """Read an answer with its label, which is the ground truth of the row."""
    prompt = as_prompt(cell_of(row, spec.prompt_key, spec), spec.prompt_key, spec)
    if not isinstance(prompt, str):
        refuse_calls(prompt, spec.prompt_key)
    (key,) = spec.answer_columns("kto")
    answer = _messages(cell_of(row, key, spec), key)
    if (role := answer[0]["role"]) != ASSISTANT:
        why, allowed = f"it answers {spec.prompt_key}", f"text, or messages from {ASSISTANT} on"
        raise BadCell(f"{key}[0].role", shown(role), why, allowed)
    _check_turns(answer, key, prompt)
    label = cell_of(row, spec.label_key, spec)
    if label not in (False, True):
        why, allowed = "it labels the answer as good or bad", "true or false, or 1 or 0"
        raise BadCell(spec.label_key, shown(label), why, allowed)
    return GivenRow.of(prompt, answer, ground_truth=bool(label))


def read_split(row: Row, spec: DataSpec) -> list[GivenRow]:
    """Read a pair as two labelled answers: the chosen one is good, the rejected one is not."""
    prompt = (pair := read_pair(row, spec)).row.prompt
    labels = zip(pair.answers, (True, False), strict=True)
    return [GivenRow.of(prompt, answer, ground_truth=is_good) for answer, is_good in labels]


def _check_turns(answer: Sequence[Message], key: str, prompt: Prompt) -> None:
    if isinstance(prompt, str) and len(answer) > 1:
        why, allowed = "a prompt that is text has one answer", "one message, or text"
        raise BadCell(key, f"{len(answer)} messages", why, allowed)


def _messages(cell: object, column: str) -> Sequence[Message]:
    """Read an answer, or the conversation that ends with it."""
    if isinstance(cell, str) and cell.strip():
        opening, *turns = _TURN.split(cell)
        if opening or not turns:
            return [{"role": ASSISTANT, "content": cell}]
        cell = [
            {"role": _SPEAKERS[speaker], "content": text.strip()}
            for speaker, text in zip(turns[::2], turns[1::2], strict=True)
        ]
    messages = conversation(cell, column, calls=True)
    for index, message in enumerate(messages):
        before = messages[index - 1] if index else _ANY_USER
        check_message(message, before, f"{column}[{index}]")
    last = messages[-1]["role"]
    if last != ASSISTANT:
        why, allowed = "the answer must be the assistant's", f"{ASSISTANT} in the last message"
        raise BadCell(f"{column}[{len(messages) - 1}].role", shown(last), why, allowed)
    return messages


def _common(chosen: Sequence[Message], rejected: Sequence[Message], spec: DataSpec) -> int:
    """Return the number of leading messages that two conversations share: their prompt.

    For equal conversations, which are dropped later, it is all messages before the last.
    """
    if chosen == rejected:
        return len(chosen) - 1
    shorter = min(len(chosen), len(rejected))
    alike = (one == other for one, other in zip(chosen, rejected, strict=False))
    common = next((index for index, is_alike in enumerate(alike) if not is_alike), shorter)
    roles = [turns[common]["role"] for turns in (chosen, rejected) if common < len(turns)]
    if common and roles == [ASSISTANT, ASSISTANT]:
        return common
    got = ("no message", "1 message")[common] if common < 2 else f"{common} messages"
    why = "the two conversations do not first differ at an assistant message"
    allowed = "conversations that differ from an assistant message on, or only answers"
    raise BadCell(spec.rejected_key, f"{got} in common with {spec.chosen_key}", why, allowed)


class ScoredAnswers:
    """Tokenises conversations to be scored, as the reward model of a job reads them.

    The template renders the whole conversation (`engine.score_engine`), and padding at its end is
    removed. The common prefix of the answers is the prompt of the row.
    """

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat

    def tokens(
        self,
        prompt: Prompt,
        ids: list[int],
        answers: Sequence[Sequence[Message]],
        _inputs: TemplateInputs,
        _later: Sequence[bytes] = (),
    ) -> tuple[list[int], list[list[AnswerPart]]]:
        """Return the common prefix of all answers, within `ids`, and the rest of each answer."""
        found = [
            up_to_padding(whole, self._chat.pad_token_id) for whole in self._whole(prompt, answers)
        ]
        columns = zip(ids, *found, strict=False)
        common = next((at for at, (own, *others) in enumerate(columns) if {own} != {*others}), None)
        common = min(len(ids), *map(len, found)) if common is None else common
        return ids[:common], [[AnswerPart(tuple(whole[common:]), True)] for whole in found]

    def _whole(self, prompt: Prompt, answers: Sequence[Sequence[Message]]) -> list[list[int]]:
        if isinstance(prompt, str):
            return [self._chat.encode(f"{prompt}{one['content']}") for (one,) in answers]
        chats = [[*prompt, *map(dict, answer)] for answer in answers]
        return accepted(self._chat.encode_chats(chats, open_turn=False))

    def trim(self, answer: Sequence[AnswerPart], limit: int) -> tuple[AnswerPart, ...]:
        """Return the first `limit` tokens, and one after them for the position of the score."""
        read = trimmed(answer, limit)
        return (*(part._replace(is_trained=False) for part in read), _DUMMY) if read else ()
