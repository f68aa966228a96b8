"""Return values of tools and user simulators, and their texts for the model.

Readers raise `BadResult` for an invalid value.
"""

import base64
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

from PIL import Image

from ppojob_api.problem import printable
from ppojob_trainer.data.media.images import MOST_BYTES, encoded
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult, encodable, read_number, shown

Side = Literal["left", "middle", "right"]
CUT = "(truncated)"
MARK_CHARACTERS = len(f"...{CUT}...")
"""Characters by which a truncated answer may exceed its limit."""
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
    """A user simulator's answer: its message, or messages of a new context.

    `ends` is whether the conversation ends, `score` that of the model's turn.
    """

    ends: bool
    text: str
    score: float
    context: list[dict[str, str]]


def read_answer(value: object) -> tuple[str, list[bytes], float]:
    """Read the text, the encoded images and the reward that a tool returned, as in verl.

    The value is a response, or a tuple (response, reward, metrics), of which the last two may be
    omitted. A response is text, a PIL image or a list of them, verl's `ToolResponse`, a dict,
    which becomes JSON, or any other object, which is converted by `str`.
    """
    if not isinstance(value, tuple):
        return *_response(value), 0.0
    if not 1 <= len(value) <= 3:
        raise BadResult("BadAnswer", shown(value), "a tuple is (response, reward, metrics)")
    reward = value[1] if len(value) > 1 else None
    number = 0.0 if reward is None else read_number(reward, "a reward is a number")
    return *_response(value[0]), number


def response(text: str, images: Sequence[Json]) -> object:
    """Build the input of `read_answer` from a service's text and images in base64."""
    files = [file_in_base64(image) for image in images]
    return SimpleNamespace(text=text, image=files, video=None) if files else text


def file_in_base64(image: Json) -> bytes:
    """Decode an image, also of a `data:` URL."""
    text = str(image).rpartition(";base64,")[2]
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise BadResult("BadAnswer", shown(image), "an image is a file in base64") from None


def check_images(images: Sequence[bytes], *, are_shown: bool) -> None:
    """Refuse images that the model cannot be shown, or that are too large together."""
    if images and not are_shown:
        why = "the model, its chat template, critic or reference takes none after the prompt"
        raise BadResult("BadAnswer", "an image", why)
    if (size := sum(map(len, images))) > MOST_BYTES:
        why = f"all images of a row together have at most {MOST_BYTES}"
        raise BadResult("BadAnswer", f"images of {size} bytes", why)


def read_reply(value: object) -> Reply:
    """Read the return value of a user simulator.

    As for verl's `generate_response`, it is a tuple (whether the conversation ends, text, score,
    metrics), of which the last two may be omitted; or only the text. Instead of the text it may be
    a list of messages, a new context. Without a score it is 0.
    """
    if isinstance(value, str | list):
        value = (False, value)
    if not isinstance(value, tuple) or not 2 <= len(value) <= 4:
        raise _no_reply(value)
    ends, content, score = bool(value[0]), value[1], (*value, None)[2]
    if not isinstance(content, str | list):
        raise _no_reply(value)
    number = 0.0 if score is None else read_number(score, "a score is a number")
    if isinstance(content, str):
        text = for_the_model(str.__str__(content), REPLY_CHARACTERS, "left")
        return Reply(ends, text, number, [])
    return Reply(ends, "", number, read_context(content))


def _no_reply(value: object) -> BadResult:
    form = "text, messages of a new context, or (whether the conversation ends, one of both, score)"
    return BadResult("BadAnswer", shown(value), f"a user returns {form}")


def read_context(messages: object) -> list[dict[str, str]]:
    """Read the messages of a new context, with text content."""
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
        why = "a new context ends with a message for the model to answer"
        raise BadResult("BadAnswer", shown(messages), why)
    if (size := sum(len(one["content"]) for one in found)) > REPLY_CHARACTERS:
        why = f"a new context has at most {REPLY_CHARACTERS}"
        raise BadResult("BadAnswer", f"{size} characters", why)
    return found


def cut(text: str, most: int, side: Side) -> str:
    """Truncate a long answer on a side, as verl does: left keeps its end, right its beginning."""
    if len(text) <= most:
        return text
    if side == "left":
        return f"{CUT}...{text[len(text) - most :]}"
    if side == "right":
        return f"{text[:most]}...{CUT}"
    half = most // 2
    return f"{text[:half]}...{CUT}...{text[len(text) - half :]}"


def for_the_model(text: str, most: int, side: Side) -> str:
    """Truncate a text, and escape what UTF-8 cannot encode."""
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
        return "", [_image(response)]
    if all(hasattr(response, name) for name in ("text", "image", "video")):
        if response.video:
            raise BadResult("BadAnswer", "a video", "a response is text and images here")
        text, _ = _response(response.text or "")
        return text, [_image(one) for one in response.image or () if one is not None]
    if isinstance(response, list) and any(isinstance(one, Image.Image) for one in response):
        return "", [_image(one) for one in response]
    if isinstance(response, dict):
        return json.dumps(response, ensure_ascii=False), []
    return str(response), []


def _image(one: object) -> bytes:
    if isinstance(one, Image.Image):
        try:
            return encoded(one)
        except ValueError as error:
            raise BadResult("BadAnswer", f"an image of mode {one.mode}", str(error)) from None
    if not isinstance(one, bytes):
        raise BadResult("BadAnswer", shown(one), "an image is a PIL image, or a file as bytes")
    return one
