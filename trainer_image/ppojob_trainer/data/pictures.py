"""Pictures of rows: out of cells, as marks in messages, as tokens, and how many of these.

Encoded files are what travels: those of a prompt as one value (`packed`), and with their places
those that tools show a row behind it (`LaterPicture`). Loads no torch.
Source of the form of messages: verl 0.8, `utils/dataset/rl_dataset.py`, `_build_messages`; of
sizes: transformers 5, `models/qwen2_vl/image_processing_pil_qwen2_vl.py` and
`models/glm4v/image_processing_pil_glm4v.py`, `smart_resize`.
"""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from PIL import Image, UnidentifiedImageError

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.json_value import Json

COLUMN: Final = "images"
MARK: Final = "<image>"
_PROCESSOR: Final = "preprocessor_config.json"
_NEWER: Final = "processor_config.json"
"""Where transformers 5 saves a whole processor."""
_QWEN: Final = "Qwen2"
_LIMITS: Final = {
    _QWEN: (56 * 56, 28 * 28 * 1280),
    "Glm4v": (112 * 112, 28 * 28 * 15000),
    "Glm46V": (112 * 112, 28 * 28 * 15000),
}
"""What the names of processors begin with that take pictures as is done here, and their limits."""
_LONGEST_SIDES: Final = 200
_MOST_PIXELS: Final = Image.MAX_IMAGE_PIXELS or 2**26
MOST_BYTES: Final = 32 * 1024 * 1024
"""Of all pictures of a row, where tools are given them."""
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
"""Files that are opened: Pillow would start a program for some others."""
_KEPT: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
"""Modes of pictures that PNG has, as models see them."""
_PATCH, _MERGE, _FRAMES = 14, 2, 2

Messages = Sequence[Mapping[str, Json]]


class BadPicture(Exception):  # noqa: N818  the picture is bad
    """A cell holds no pictures that can be read."""

    def __init__(self, got: str, why: str, allowed: str) -> None:
        self.got, self.why, self.allowed = got, why, allowed
        super().__init__(f"got {got}: {why}; {allowed}")


class LaterPicture(msgspec.Struct, frozen=True, array_like=True):
    """A picture that a row is shown behind its prompt.

    Attributes:
        start: its first token, as the response counts them.
        file: encoded.
    """

    start: int
    file: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """How large a picture is wanted, beside what the model's processor makes of it.

    Attributes:
        least: pixels to which a smaller one is enlarged; None for the processor's.
        most: those that a larger one is reduced to; None for the processor's.
        sides: width and height in place of its own; None for these.
    """

    least: int | None = None
    most: int | None = None
    sides: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PictureForm:
    """How a model takes pictures.

    Attributes:
        token: what stands for a picture in text, and then as often as the tower gives features.
        patch: pixels of a side of what the tower sees at once.
        merge: such patches of a side of what becomes one token.
        processor: what the name of transformers' class for it begins with.
        least: pixels to which a smaller picture is enlarged, about.
        most: those that a larger one is reduced to.
    """

    token: int
    patch: int
    merge: int
    least: float
    most: float
    processor: str = _QWEN

    @classmethod
    def read(cls, folder: Path) -> "PictureForm | None":
        """The form of a model in Hugging Face form; None where it sees none."""
        config = _object(folder / "config.json")
        # In transformers' order.
        processor = _object(folder / _NEWER).get("image_processor") or _object(folder / _PROCESSOR)
        token = config.get("image_token_id")
        if not isinstance(token, int) or "vision_config" not in config or not processor:
            return None
        name = str(processor.get("image_processor_type", _QWEN))
        known = next((one for one in _LIMITS if name.startswith(one)), None)
        if known is None:
            return None
        size = processor.get("size") or {}
        least, most = (
            size.get(edge, limit)
            for edge, limit in zip(("shortest_edge", "longest_edge"), _LIMITS[known], strict=True)
        )
        if known == _QWEN:
            least = processor.get("min_pixels") or least
            most = processor.get("max_pixels") or most
        else:  # which counts pixels of a picture that is as many frames of a video
            frames = processor.get("temporal_patch_size", _FRAMES)
            least, most = least / frames, most / frames
        sides = processor.get("patch_size", _PATCH), processor.get("merge_size", _MERGE)
        return cls(token, *sides, least, most, known)

    def grid(self, picture: bytes) -> tuple[int, int]:
        """Tokens of a picture from top to bottom and from left to right.

        The processor's own `smart_resize` loads torch, and the controller must not.
        """
        with Image.open(io.BytesIO(picture)) as image:
            across, down = self.sides_of(*image.size)
        unit = self.patch * self.merge
        return down // unit, across // unit

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in pixels of what the model sees of a picture of these sides."""
        unit = self.patch * self.merge
        if self.processor != _QWEN and min(height, width) < unit:
            grow = max(unit / height, unit / width)
            height, width = int(height * grow), int(width * grow)
        down, across = (round(side / unit) for side in (height, width))
        pixels = down * across * unit**2
        if pixels > self.most:
            shrink = math.sqrt(height * width / self.most)
            down, across = (max(1, math.floor(s / shrink / unit)) for s in (height, width))
        elif pixels < self.least:
            grow = math.sqrt(self.least / (height * width))
            down, across = (math.ceil(side * grow / unit) for side in (height, width))
        return across * unit, down * unit

    def fitted(self, picture: bytes, wanted: Wanted) -> bytes:
        """A picture as large as its row wants it; the same file where it is.

        Source: qwen-vl-utils, `vision_process.py`, `fetch_image`, by which verl makes pictures as
        large as rows say before the model's processor does.
        """
        least, most = wanted.least or self.least, wanted.most or self.most
        form = replace(self, least=least, most=max(least, most))
        image = opened(picture)
        size = form.sides_of(*(wanted.sides or image.size))
        return picture if size == image.size else encoded(image.resize(size))

    def expanded(self, ids: Sequence[int], pictures: bytes) -> list[int]:
        """A prompt with as many tokens of each picture as it has, in place of one."""
        if not pictures:
            return list(ids)
        counts = iter([math.prod(self.grid(picture)) for picture in unpacked(pictures)])
        return [one for id_ in ids for one in [id_] * (next(counts) if id_ == self.token else 1)]

    def sides(self, picture: bytes) -> tuple[int, int]:
        """Width and height in pixels of what the model sees of a picture."""
        with Image.open(io.BytesIO(picture)) as image:
            return self.sides_of(*image.size)

    def spans(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[tuple[int, int]]:
        """Where the tokens of each picture of a text begin, and how many they are.

        Those of a prompt are found by its tokens. `later` are the beginnings of those behind it,
        the last of the pictures: there the policy may draw such a token itself, which is text.
        """
        files = unpacked(pictures)
        starts: list[int | None] = [*[None] * (len(files) - len(later)), *later]
        found: list[tuple[int, int]] = []
        end = 0
        for file, start in zip(files, starts, strict=True):
            begin = ids.index(self.token, end) if start is None else start
            found.append((begin, math.prod(self.grid(file))))
            end = sum(found[-1])
        return found

    def positions(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Time, height and width of each token of a text, which go on from the highest one.

        Of text all three count on; a picture has one time, and its rows and columns. Pictures are
        those of `spans`.
        """
        found: list[tuple[int, int, int]] = []
        begin = 0
        spans = self.spans(ids, pictures, later)
        for (start, _), file in zip(spans, unpacked(pictures), strict=True):
            text = range(begin, begin + start - len(found))
            down, across = self.grid(file)
            found += [(n,) * 3 for n in text]
            begin = text.stop
            found += [(begin, begin + y, begin + x) for y in range(down) for x in range(across)]
            begin += max(down, across)
        found += [(n,) * 3 for n in range(begin, begin + len(ids) - len(found))]
        return [list(row) for row in zip(*found, strict=True)]


def why_blind(spec: PPOJobSpec) -> Callable[[str], str]:
    """Say of a data source what keeps its rows from having pictures; empty where they may.

    Whoever else reads the policy's tokens takes pictures as the policy does.
    """
    form = PictureForm.read(Path(spec.model.path))
    forms = [PictureForm.read(Path(path)) for path in spec.reference_paths]

    blind = next((one for one in spec.critic_paths if PictureForm.read(Path(one)) != form), None)

    def why(data_source: str) -> str:
        if spec.data.teacher_prompt_key is not None or spec.algorithm.reprompt is not None:
            return "not in this version where the teacher has prompts of its own"
        if blind is not None:
            return f"{blind} of spec.critic takes none, or not as the policy"
        number = 0 if spec.reference is None else spec.reference.number_for(data_source)
        if number is None or forms[number] == form:
            return ""
        return f"{spec.reference_paths[number]} of spec.reference takes none, or not as the policy"

    return why


def seen_by_all(spec: PPOJobSpec) -> bool:
    """Whether the policy sees pictures, and all who read its tokens take them as it does."""
    form = PictureForm.read(Path(spec.model.path))
    readers = [*spec.critic_paths, *spec.reference_paths]
    return form is not None and all(PictureForm.read(Path(path)) == form for path in readers)


def packed(pictures: Sequence[bytes]) -> bytes:
    """The pictures of a prompt as one value; empty for none."""
    return msgspec.msgpack.encode(pictures) if pictures else b""


def unpacked(pictures: bytes) -> list[bytes]:
    """The pictures again."""
    return msgspec.msgpack.decode(pictures, type=list[bytes]) if pictures else []


def packed_later(pictures: Sequence[LaterPicture]) -> bytes:
    """The pictures of a row behind its prompt as one value; empty for none."""
    return msgspec.msgpack.encode(pictures) if pictures else b""


def unpacked_later(pictures: bytes) -> list[LaterPicture]:
    """The pictures again."""
    return msgspec.msgpack.decode(pictures, type=list[LaterPicture]) if pictures else []


def opened(picture: bytes) -> Image.Image:
    """A picture as models see it, in red, green and blue; RGBA on white where it is transparent.

    Pillow refuses a picture by its size before it decodes it: what asks for gigabytes ends a pod.
    Source: qwen-vl-utils, `vision_process.py`, `to_rgb`, which verl opens pictures by.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(picture), formats=_FORMATS)
    with image:
        if image.mode != "RGBA":
            return image.convert("RGB")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white


def encoded(image: Image.Image) -> bytes:
    """The file of a picture, of which not a pixel is lost."""
    file = io.BytesIO()
    image = image if image.mode in _KEPT else image.convert("RGB")
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def read_pictures(
    cell: object, form: PictureForm | None = None, wanted: Wanted = Wanted()
) -> list[bytes]:
    """The encoded pictures of a cell: a list of structs with bytes or a path, or of one of these.

    For a model with a form they are as large as is wanted, and as their structs say, by
    qwen-vl-utils' names: `min_pixels` and `max_pixels`, or `resized_height` and `resized_width`.

    Raises:
        BadPicture: something is none, or cannot be read.
    """
    cells = cell if isinstance(cell, list) else [] if cell is None else [cell]
    found = [(_read(one), _wanted(one, wanted)) for one in cells]
    if form is None:
        return [file for file, _ in found]
    return [file if own == Wanted() else form.fitted(file, own) for file, own in found]


def behind_pictures(text: str, count: int) -> Json:
    """The content of a message: so many pictures, and a text behind them."""
    if not count:
        return text
    parts: list[Json] = [{"type": "image"} for _ in range(count)]
    return parts + ([{"type": "text", "text": text}] if text else [])


def with_parts(messages: Messages) -> list[dict[str, Json]]:
    """Messages whose marks are parts of their content, as templates take pictures."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def pictures_in(messages: Messages) -> int:
    """How many parts of messages are pictures."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def marks(messages: Messages) -> int:
    """How many pictures messages speak of."""
    return sum(str(message["content"]).count(MARK) for message in messages)


def _parts(content: Json) -> Json:
    if not isinstance(content, str) or MARK not in content:
        return content
    first, *others = content.split(MARK)
    parts: list[Json] = [{"type": "text", "text": first}] if first else []
    for text in others:
        parts.append({"type": "image"})
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def _wanted(cell: object, all_want: Wanted) -> Wanted:
    """What the struct of a picture says of its size, over what is said of all."""
    if not isinstance(cell, Mapping):
        return all_want
    keys = ("min_pixels", "max_pixels", "resized_width", "resized_height")
    for key in keys:
        pixels = cell.get(key)
        if pixels is not None and not (type(pixels) is int and 0 < pixels <= _MOST_PIXELS):
            why = f"{key} says how large the picture is to be"
            raise BadPicture(shown(pixels), why, f"an integer from 1 to {_MOST_PIXELS}, or none")
    least, most, width, height = (cell.get(key) for key in keys)
    if least is not None and most is not None and least > most:
        why = f"it is more than max_pixels {most}"
        raise BadPicture(f"min_pixels {least}", why, "as many or fewer")
    if not width or not height:
        # What a picture says of itself counts before what is said of all.
        least, most = least or all_want.least, most or all_want.most
        if least and most and least > most:
            least, most = (least, None) if cell.get("min_pixels") else (None, most)
        return Wanted(least, most)
    if max(width, height) > _LONGEST_SIDES * min(width, height):
        raise _too_long(width, height)
    return Wanted(all_want.least, all_want.most, (width, height))


def _read(cell: object) -> bytes:
    content: object = cell
    if isinstance(cell, Mapping):
        content = cell.get("bytes") or cell.get("path")
    named = shown(content) if isinstance(content, str) else "bytes that are no picture"
    if isinstance(content, str):
        try:
            content = Path(content).read_bytes()
        except OSError as error:
            why = error.strerror or "it cannot be read"
            raise BadPicture(named, why, "the path of a picture, or its bytes") from None
    if not isinstance(content, bytes):
        allowed = "a list of structs with bytes or a path"
        raise BadPicture(type(content).__name__, "it is no picture", allowed)
    try:
        sides = opened(content).size
    except Exception as error:  # each format of Pillow's raises its own
        why = " ".join(str(error).split())
        if isinstance(error, UnidentifiedImageError):  # it tells an address in memory
            why = "no picture of a known format"
        raise BadPicture(named, why, "a whole PNG, JPEG or the like") from None
    if max(sides) > _LONGEST_SIDES * min(sides):
        raise _too_long(*sides)
    return content


def _too_long(width: int, height: int) -> BadPicture:
    allowed = f"sides of which one is at most {_LONGEST_SIDES} times the other"
    return BadPicture(f"{width} by {height} pixels", "no model takes it", allowed)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # whoever needs it tells of it
    return found if isinstance(found, dict) else {}
