"""Checks a chat template: rows that grow turn by turn must equal the rendered whole."""

from collections.abc import Mapping, Sequence
from itertools import product, zip_longest

from ppojob_api.problem import shown
from ppojob_trainer.data.chat import Tools
from ppojob_trainer.data.media.picture_form import PictureForm
from ppojob_trainer.data.media.pictures import behind_pictures
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages
from ppojob_trainer.data.turns import (
    ASKED,
    CALLED,
    SPOKEN,
    TurnTemplate,
    assistant_turn,
)
from ppojob_trainer.json_value import Json

_THOUGHTS = frozenset({"<think>", "</think>"})
"""Not compared: templates drop earlier thoughts, and here they stay."""
_SYSTEM = {"role": "system", "content": "Be brief."}


def check_template(
    template: TurnTemplate, tools: Tools, *, parallel: int = 1, users: bool = True
) -> str | None:
    """Return why a chat template cannot build rows of several turns; None if it can.

    Test rows, turn by turn and as a whole, are compared by their special tokens.

    Args:
        template: of the model.
        tools: schemas of its tools; empty: no turn has a call.
        parallel: calls of one turn that may be answered.
        users: whether a user may answer a turn.

    Raises:
        JobFailed: the template's process cannot start, or is killed repeatedly.
    """
    turns = [["tool"], ["tool"] * parallel] if tools else []
    turns += [["user"]] if users else []
    prompts = [[_SYSTEM, ASKED]] if _takes_system(template, tools) else []
    try:
        found = (_difference(template, tools, prompt, turns * 3) for prompt in [*prompts, [ASKED]])
        return next(filter(None, found), None)
    except BadChatTemplate as error:
        return str(error)


def shows_tools(template: TurnTemplate, tools: Tools) -> bool:
    """Whether a chat template tells the model what it may call."""
    try:
        told, bare = (template.render([ASKED], given, open_turn=True) for given in (tools, None))
    except BadChatTemplate:
        return False
    return told != bare


def shows_pictures(template: TurnTemplate, tools: Tools) -> bool:
    """Whether a chat template shows the model a picture of a tool, where the model sees any."""
    if not isinstance(form := template.chat.pictures, PictureForm):
        return False
    try:
        ids = template.delta([{"role": "tool", "content": behind_pictures("It.", 1)}], tools)
    except BadChatTemplate:
        return False
    return ids.count(form.token) == 1


def _difference(
    template: TurnTemplate, tools: Tools, prompt: Messages, turns: Sequence[Sequence[str]]
) -> str | None:
    """Say where a row that grows turn by turn differs from the whole; None where it does not."""
    answers = [_answers(roles) for roles in turns]
    whole = _whole(template, tools, prompt, answers)
    (begun,) = template.chat.encode_chats([prompt], template.variables, tools=tools)
    if isinstance(begun, BadChatTemplate):
        raise begun
    heads: dict[int, list[str]] = {}
    row = _skeleton(template, begun)
    for i in range(len(turns) + 1):
        start, stop = _between(whole, i)
        written = _skeleton(template, template.chat.encode(whole[start:stop]))
        is_last = i == len(turns)
        head = [] if is_last else heads.setdefault(turns[i].count("tool"), written[len(row) :])
        if written != row + head:
            return str(_refusal(template, turns, i, row + head, written))
        if not is_last:
            suffix = template.suffix(answers[i], tools)
            closing = template.chat.encode(suffix.pieces[0][: suffix.closing])
            row = _skeleton(template, [*closing, *template.delta(answers[i], tools)])
    return None


def _refusal(
    template: TurnTemplate,
    turns: Sequence[Sequence[str]],
    turn: int,
    row: Sequence[str],
    written: Sequence[str],
) -> BadChatTemplate:
    before = (
        "the prompt" if turn == 0 else f"turn {turn}, answered by {' and '.join(turns[turn - 1])}"
    )
    pair = next(pair for pair in zip_longest(written, row) if pair[0] != pair[1])
    wanted, found = ("nothing" if token is None else shown(token) for token in pair)
    return template.refusal(
        f"{wanted} behind {before}, in a conversation of {len(turns)} turns",
        f"a row that grows turn by turn has {found} there, so what the chat template writes of a "
        "turn depends on other turns",
    )


def _whole(
    template: TurnTemplate,
    tools: Tools,
    prompt: Messages,
    answers: Sequence[Sequence[Mapping[str, Json]]],
) -> str:
    """A conversation in which these messages answer turns, whose words tell their number."""
    talks = []
    for content, as_text in product(("", SPOKEN), (False, True)):
        talk = [*prompt]
        for i, messages in enumerate(answers):
            calls = [message for message in messages if message["role"] == "tool"]
            says = content if calls else SPOKEN
            turn = assistant_turn(calls, as_text=as_text, content=says, mark=f"{i}q")
            talk += [turn, *messages]
        talks.append(talk)
    rendered = template.chat.render_chats(talks, template.variables, tools=tools)
    texts = [one for one in rendered if isinstance(one, str)]
    refused = [one for one in rendered if isinstance(one, BadChatTemplate)]
    if not texts:
        raise refused[0]
    shows_calls = any(CALLED in text for text in texts)
    words = [
        f"{CALLED if shows_calls and messages[0]['role'] == 'tool' else SPOKEN}{i}q"
        for i, messages in enumerate(answers)
    ]
    for text in texts:
        if all(word in text for word in words):
            return text
    raise template.refusal(
        f"a conversation of {len(answers)} turns",
        "the chat template does not show each turn of the assistant with all its calls",
    )


def _answers(roles: Sequence[str]) -> list[Mapping[str, Json]]:
    return [
        {"role": role, "content": f"Answer {i}.", "name": "tool", "tool_call_id": f"call{i:05}"}
        if role == "tool"
        else {"role": role, "content": f"Answer {i}."}
        for i, role in enumerate(roles)
    ]


def _between(whole: str, turn: int) -> tuple[int, int]:
    """Where the text between two turns of the assistant begins and ends."""
    ends = [
        whole.rfind(word) + len(word)
        for base in (SPOKEN, CALLED)
        if (word := f"{base}{turn - 1}q") in whole and turn
    ]
    starts = [at for base in (SPOKEN, CALLED) if (at := whole.find(f"{base}{turn}q")) >= 0]
    return max(ends, default=0), min(starts, default=len(whole))


def _skeleton(template: TurnTemplate, ids: Sequence[int]) -> list[str]:
    special = template.text.special
    return [special[i] for i in ids if i in special and special[i] not in _THOUGHTS]


def _takes_system(template: TurnTemplate, tools: Tools) -> bool:
    """Whether a prompt may begin with a message of the system; Gemma's may not."""
    prompt = [_SYSTEM, ASKED]
    (begun,) = template.chat.render_chats([prompt], template.variables, tools=tools)
    return isinstance(begun, str)
