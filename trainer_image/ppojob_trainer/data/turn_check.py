"""Check of a chat template: rows built turn by turn must equal the rendered conversation."""

from collections.abc import Mapping, Sequence
from itertools import product, zip_longest

from ppojob_api.problem import shown
from ppojob_trainer.data.chat import Tools
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.images import behind_images
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages, accepted
from ppojob_trainer.data.turns import ASKED, CALLED, SPOKEN, TurnTemplate, assistant_turn
from ppojob_trainer.json_value import Json

_THOUGHTS = frozenset({"<think>", "</think>"})
"""Not compared: templates drop earlier thoughts, which rows keep."""
_SYSTEM = {"role": "system", "content": "Be brief."}


def check_template(
    template: TurnTemplate, tools: Tools, *, parallel: int = 1, users: bool = True
) -> str | None:
    """Return why a chat template does not support rows of several turns; None if it does.

    Dummy rows, built turn by turn and rendered as a whole, are compared by their special tokens.
    They have turns with calls of `tools`, if any, up to `parallel` calls per turn, and answers of
    users if `users`.
    """
    turns = [["tool"], ["tool"] * parallel] if tools else []
    turns += [["user"]] if users else []
    prompts: list[Messages] = [[_SYSTEM, ASKED], [ASKED]]
    # Gemma's refuses a system message.
    (begun,) = template.chat.render_chats(prompts[:1], template.variables, tools=tools)
    prompts = prompts if isinstance(begun, str) else prompts[1:]
    try:
        found = (_difference(template, tools, prompt, turns * 3) for prompt in prompts)
        return next(filter(None, found), None)
    except BadChatTemplate as error:
        return str(error)


def shows_tools(template: TurnTemplate, tools: Tools) -> bool:
    """Whether a chat template renders the tool schemas."""
    try:
        texts = {template.render([ASKED], one, open_turn=True) for one in (tools, None)}
    except BadChatTemplate:
        return False
    return len(texts) == 2


def shows_images(template: TurnTemplate, tools: Tools, role: str = "tool") -> bool:
    """Whether a chat template renders an image in a message, for a model with images."""
    if not isinstance(form := template.chat.images, ImageForm):
        return False
    try:
        ids = template.delta([{"role": role, "content": behind_images("It.", 1)}], tools)
    except BadChatTemplate:
        return False
    return ids.count(form.token) == 1


def _difference(
    template: TurnTemplate, tools: Tools, prompt: Messages, turns: Sequence[Sequence[str]]
) -> str | None:
    """Return the first difference of a row built turn by turn from the whole; None if equal."""
    answers = [_answers(roles) for roles in turns]
    whole = _whole(template, tools, prompt, answers)
    (begun,) = accepted(template.chat.encode_chats([prompt], template.variables, tools=tools))
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
        f"{wanted} after {before}, in a conversation of {len(turns)} turns",
        f"a row built turn by turn has {found} there, so the rendering of a turn depends on other "
        "turns",
    )


def _whole(
    template: TurnTemplate,
    tools: Tools,
    prompt: Messages,
    answers: Sequence[Sequence[Mapping[str, Json]]],
) -> str:
    """Render a conversation with these answers to numbered dummy turns."""
    chats = []
    for content, as_text in product(("", SPOKEN), (False, True)):
        chat = [*prompt]
        for i, messages in enumerate(answers):
            calls = [message for message in messages if message["role"] == "tool"]
            own = content if calls else SPOKEN
            turn = assistant_turn(calls, as_text=as_text, content=own, mark=f"{i}q")
            chat += [turn, *messages]
        chats.append(chat)
    rendered = template.chat.render_chats(chats, template.variables, tools=tools)
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
    ids = [{"name": "tool", "tool_call_id": f"call{i:05}"} for i in range(len(roles))]
    return [
        {"role": role, "content": f"Answer {i}.", **(ids[i] if role == "tool" else {})}
        for i, role in enumerate(roles)
    ]


def _between(whole: str, turn: int) -> tuple[int, int]:
    """Return start and end of the text before a turn, from the turn before it."""
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
