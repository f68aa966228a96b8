"""Preference data: pairs of a chosen and a rejected answer, or answers labelled good or bad.

DPO and reward models are trained on the former, KTO on the latter.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, up_to_padding
from ppojob_trainer.data.columns import as_prompt, cell_of, conversation
from ppojob_trainer.data.demonstrations import (
    ASSISTANT,
    Message,
    check_message,
    given_row,
    learnt,
    refuse_calls,
)
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.data.prompt_store import AnswerPart, Prompt, PromptRow
from ppojob_trainer.data.template_renderer import BadChatTemplate

_SPEAKERS: Final = {"Human": "user", "Assistant": ASSISTANT}
_TURN: Final = re.compile(rf"\n\n({'|'.join(_SPEAKERS)}):")
"""The beginning of a turn in the texts of Anthropic's HH-RLHF."""

_SOMEBODY: Message = {"role": "user"}
_MOST: Final = 1_000_000
"""Largest margin, like coefficients of the manifest."""
_READ_BY_NOBODY = AnswerPart((0,), True)
"""A token after a scored text: its value comes from the state before it."""


def read_pair(
    row: Row, spec: DataSpec, *, is_scored: bool = False
) -> tuple[PromptRow, float, list[Sequence[Message]]]:
    """Read a pair: its prompt and difficulty, and the messages of the chosen and the other answer.

    Of answers that are learnt, calls are known to be written as the template does; what it makes
    of them elsewhere, and in conversations that are scored, is not.

    Raises:
        BadCell: a cell is missing or wrong; the first one.
    """
    keys = spec.chosen_key, spec.rejected_key
    chosen, rejected = (_messages(cell_of(row, key, spec), key) for key in keys)
    if chosen[0]["role"] == rejected[0]["role"] == ASSISTANT:
        prompt = as_prompt(cell_of(row, spec.prompt_key, spec), spec.prompt_key, spec)
    else:
        common = _common(chosen, rejected, spec)
        prompt, chosen, rejected = (
            list(map(dict, chosen[:common])),
            chosen[common:],
            rejected[common:],
        )
    if not isinstance(prompt, str):
        refuse_calls(prompt, spec.prompt_key)
    for key, answer in zip(keys, (chosen, rejected), strict=True):
        if is_scored:
            refuse_calls(answer, key)
        _check_turns(answer, key, prompt)
    found, difficulty = given_row(row, prompt, spec)
    if spec.margin_key is not None:
        found = replace(found, ground_truth=_margin(row, spec.margin_key, spec))
    return found, difficulty, [chosen, rejected]


def _margin(row: Row, key: str, spec: DataSpec) -> float:
    margin = cell_of(row, key, spec)
    if isinstance(margin, int | float) and not isinstance(margin, bool) and 0 <= margin <= _MOST:
        return float(margin)
    why, allowed = "the rewards of the pair are to differ by it", f"a number from 0 to {_MOST}"
    raise BadCell(key, shown(margin), why, allowed)


def read_labelled(row: Row, spec: DataSpec) -> tuple[PromptRow, float, list[Sequence[Message]]]:
    """Read an answer with its label: the prompt, which holds it, its difficulty, and its messages.

    Raises:
        BadCell: a cell is missing or wrong; the first one.
    """
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
        why, allowed = "it says whether the answer is good", "true or false, or 1 or 0"
        raise BadCell(spec.label_key, shown(label), why, allowed)
    found, difficulty = given_row(row, prompt, spec)
    return replace(found, ground_truth=bool(label)), difficulty, [answer]


def read_split(row: Row, spec: DataSpec) -> list[tuple[PromptRow, float, list[Sequence[Message]]]]:
    """Read a pair as two answers with labels: the chosen one is good, the other is not.

    Raises:
        BadCell: a cell is missing or wrong; the first one.
    """
    found, difficulty, answers = read_pair(row, spec)
    labels = zip(answers, (True, False), strict=True)
    return [
        (replace(found, ground_truth=is_good), difficulty, [answer]) for answer, is_good in labels
    ]


def _check_turns(answer: Sequence[Message], key: str, prompt: Prompt) -> None:
    if isinstance(prompt, str) and len(answer) > 1:
        why, allowed = "a prompt that is text has one answer", "one message, or text"
        raise BadCell(key, f"{len(answer)} messages", why, allowed)


def _messages(cell: object, column: str) -> Sequence[Message]:
    """An answer, or the conversation that ends with it."""
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
        before = messages[index - 1] if index else _SOMEBODY
        check_message(message, before, f"{column}[{index}]")
    last = messages[-1]["role"]
    if last != ASSISTANT:
        why, allowed = "the answer is the assistant's", f"{ASSISTANT} in the last message"
        raise BadCell(f"{column}[{len(messages) - 1}].role", shown(last), why, allowed)
    return messages


def _common(chosen: Sequence[Message], rejected: Sequence[Message], spec: DataSpec) -> int:
    """Return the number of leading messages that two conversations share: their prompt.

    For equal ones, from which nothing is learnt, it is the messages before the answer.
    """
    if chosen == rejected:
        return len(chosen) - 1
    shorter = min(len(chosen), len(rejected))
    alike = (one == other for one, other in zip(chosen, rejected, strict=False))
    common = next((index for index, is_alike in enumerate(alike) if not is_alike), shorter)
    parting = [turns[common]["role"] for turns in (chosen, rejected) if common < len(turns)]
    if common and parting == [ASSISTANT, ASSISTANT]:
        return common
    got = ("no message", "1 message")[common] if common < 2 else f"{common} messages"
    why = "the two conversations do not first differ at an assistant message"
    allowed = "conversations that differ from a turn of the assistant on, or answers alone"
    raise BadCell(spec.rejected_key, f"{got} in common with {spec.chosen_key}", why, allowed)


class ScoredAnswers:
    """Tokenises conversations to be scored, as a reward model of a job reads them.

    That is the whole conversation by the template (`engine.score_engine`), up to padding at its
    end. The common prefix of its answers is the prompt of the row.
    """

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat

    def tokens(
        self,
        prompt: Prompt,
        ids: list[int],
        answers: Sequence[Sequence[Message]],
        _told: TemplateInputs,
        _later: Sequence[bytes] = (),
    ) -> tuple[list[int], list[list[AnswerPart]]]:
        """The prompt of the row, out of the ids of the prompt, and what follows in each answer.

        Raises:
            BadChatTemplate: the template refuses a conversation.
        """
        found = [
            up_to_padding(whole, self._chat.pad_token_id) for whole in self._whole(prompt, answers)
        ]
        alike = zip(ids, *found, strict=False)
        common = next((at for at, (own, *others) in enumerate(alike) if {own} != {*others}), None)
        common = min(len(ids), *map(len, found)) if common is None else common
        return ids[:common], [[AnswerPart(tuple(whole[common:]), True)] for whole in found]

    def _whole(self, prompt: Prompt, answers: Sequence[Sequence[Message]]) -> list[list[int]]:
        if isinstance(prompt, str):
            return [self._chat.encode(f"{prompt}{said['content']}") for (said,) in answers]
        chats = [[*prompt, *map(dict, answer)] for answer in answers]
        outcomes = self._chat.encode_chats(chats, open_turn=False)
        for outcome in outcomes:
            if isinstance(outcome, BadChatTemplate):
                raise outcome
        return [ids for ids in outcomes if not isinstance(ids, BadChatTemplate)]

    def kept(self, answer: Sequence[AnswerPart], limit: int) -> tuple[AnswerPart, ...]:
        """The first `limit` tokens, read, and one behind them at which the score stands."""
        read = learnt(answer, limit)
        return (
            (*(part._replace(is_trained=False) for part in read), _READ_BY_NOBODY) if read else ()
        )
