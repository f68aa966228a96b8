"""Return values of tools and user simulators, and the text that the model gets for them."""

import base64
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

from PIL import Image

from ppojob_api.problem import printable
from ppojob_trainer.data.media.pictures import encoded
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult, encodable, read_number, shown

Side = Literal["left", "middle", "right"]
CUT = "(truncated)"
MARK_CHARACTERS = len(f"...{CUT}...")
"""Most characters by which a truncated answer exceeds its limit."""
REPLY_CHARACTERS: Final = 1_000_000
"""Limit of a user simulator's text; verl has no limit."""
_NAME_CHARACTERS = 64
_WHY_CHARACTERS = 600
FAILURES: Final = {
    "unknown": "Error: there is no tool {name}. Tools: {why}.",
    "arguments": "Error: wrong arguments for {name}: {why}.",
    "raised": "Error: {name} failed: {why}",
    "timeout": "Error: {name} gave no answer in {why} s.",
    "died": "Error: {name} ended without an answer.",
}
"""The model's message for a failed call, by the kind of failure."""


_ROLES: Final = ("system", "user", "assistant")


class Reply(NamedTuple):
    """A user simulator's answer: whether the conversation ends, its text, and the turn's score.

    Attributes:
        context: messages of a new context, in place of text; empty for none.
    """

    ends: bool
    text: str
    score: float
    context: list[dict[str, str]]


def read_answer(value: object) -> tuple[str, list[bytes], float]:
    """Text, encoded pictures and reward that a tool returned, by the rules of verl's tools.

    It is a response, or a tuple of it, a reward and metrics, of which the last may be left out. A
    response is text, a picture of PIL or a list of them, verl's `ToolResponse`, a dict, of which
    the model gets the JSON, or anything else, of which it gets what `str` makes of it.

    Raises:
        BadResult: the reward is no finite number, the tuple has another length, or what should be
            a picture is none.
    """
    if not isinstance(value, tuple):
        return *_response(value), 0.0
    if not 1 <= len(value) <= 3:
        raise BadResult("BadAnswer", shown(value), "a tuple is (response, reward, metrics)")
    reward = value[1] if len(value) > 1 else None
    number = 0.0 if reward is None else read_number(reward, "a reward is a number")
    return *_response(value[0]), number


def response(text: str, images: Sequence[Json]) -> object:
    """Build the input of `read_answer` for a service that returns pictures in base64.

    Raises:
        BadResult: a picture is not base64.
    """
    files = []
    for image in images:
        text_of_file = str(image).rpartition(";base64,")[2]  # a data URL says it in front
        try:
            files.append(base64.b64decode("".join(text_of_file.split()), validate=True))
        except ValueError:
            raise BadResult("BadAnswer", shown(image), "a picture is a file in base64") from None
    return SimpleNamespace(text=text, image=files, video=None) if files else text


def read_reply(value: object) -> Reply:
    """Read what a user returned.

    By the rules of verl's `generate_response`, which returns whether the conversation ends, text, a
    score and a dict of metrics. All behind the text may be left out, and all but the text, in whose
    place a list of messages may stand. No score counts as 0.

    Raises:
        BadResult: it is something else, or the score is no finite number.
    """
    if isinstance(value, str | list):
        value = (False, value)
    if not isinstance(value, tuple) or not 2 <= len(value) <= 4:
        raise _no_reply(value)
    ends, said, score = bool(value[0]), value[1], (*value, None)[2]
    if not isinstance(said, str | list):
        raise _no_reply(value)
    number = 0.0 if score is None else read_number(score, "a score is a number")
    if isinstance(said, str):
        text = for_the_model(str.__str__(said), REPLY_CHARACTERS, "left")
        return Reply(ends, text, number, [])
    return Reply(ends, "", number, read_context(said))


def _no_reply(value: object) -> BadResult:
    form = "text, messages of a new context, or (whether the conversation ends, one of both, score)"
    return BadResult("BadAnswer", shown(value), f"a user returns {form}")


def read_context(messages: object) -> list[dict[str, str]]:
    """Read the messages of a new context, which are texts.

    Raises:
        BadResult: they are something else, the last one needs no answer, or there are too many.
    """
    found = []
    if not isinstance(messages, list):
        raise BadResult("BadAnswer", shown(messages), "a new context is a list of messages")
    for message in messages:
        one = message if isinstance(message, dict) else {}
        role, content = one.get("role"), one.get("content")
        if role not in _ROLES or not isinstance(content, str):
            why = f"a message has a role, one of {', '.join(_ROLES)}, and content, a text"
            raise BadResult("BadAnswer", shown(message), why)
        found.append({"role": role, "content": encodable(str.__str__(content))})
    if not found or found[-1]["role"] == "assistant":
        why = "the last message of a new context is one that the model answers"
        raise BadResult("BadAnswer", shown(messages), why)
    if (size := sum(len(one["content"]) for one in found)) > REPLY_CHARACTERS:
        why = f"a new context has at most {REPLY_CHARACTERS}"
        raise BadResult("BadAnswer", f"{size} characters", why)
    return found


def cut(text: str, most: int, side: Side) -> str:
    """Truncate a long answer at a side, as verl does: left keeps its end, right its beginning."""
    if len(text) <= most:
        return text
    if side == "left":
        return f"{CUT}...{text[len(text) - most :]}"
    if side == "right":
        return f"{text[:most]}...{CUT}"
    half = most // 2
    return f"{text[:half]}...{CUT}...{text[len(text) - half :]}"


def for_the_model(text: str, most: int, side: Side) -> str:
    """Truncate a text, and replace characters that UTF-8 cannot hold."""
    return cut(encodable(cut(text, most, side)), most + MARK_CHARACTERS, side)


def failure_text(failure: str, name: str, why: str = "") -> str:
    """Return the one-line text for a failed call; long names and reasons are truncated."""
    return FAILURES[failure].format(
        name=printable(name, _NAME_CHARACTERS), why=printable(why, _WHY_CHARACTERS)
    )


def _response(response: Any) -> tuple[str, list[bytes]]:
    if isinstance(response, str):
        return str.__str__(response), []
    if isinstance(response, Image.Image):
        return "", [_picture(response)]
    if all(hasattr(response, name) for name in ("text", "image", "video")):
        if response.video:
            raise BadResult("BadAnswer", "a film", "a response is text and pictures here")
        text, _ = _response(response.text or "")
        return text, [_picture(one) for one in response.image or () if one is not None]
    if isinstance(response, list) and any(isinstance(one, Image.Image) for one in response):
        return "", [_picture(one) for one in response]
    if isinstance(response, dict):
        return json.dumps(response, ensure_ascii=False), []
    return str(response), []


def _picture(one: object) -> bytes:
    if isinstance(one, Image.Image):
        try:
            return encoded(one)
        except ValueError as error:
            raise BadResult("BadAnswer", f"a picture of mode {one.mode}", str(error)) from None
    if not isinstance(one, bytes):
        raise BadResult("BadAnswer", shown(one), "a picture is one of PIL, or the bytes of a file")
    return one
