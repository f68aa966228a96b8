"""Picture formats of models that see the whole picture as a grid of tokens. Loads no torch.

Sources: transformers 5, `get_resize_output_image_size` of
`models/pixtral/image_processing_pil_pixtral.py`; `get_aspect_ratio_preserving_size` of
`models/gemma4/image_processing_pil_gemma4.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from ppojob_trainer.data.media.media_form import Settings
from ppojob_trainer.data.media.picture_files import NEWER, OF_VIDEOS, added_tokens, read_json
from ppojob_trainer.data.media.picture_form import OwnSizes, PictureForm, Wanted
from ppojob_trainer.data.media.pictures import unpacked
from ppojob_trainer.data.media.smart_resize import no_shorter, smart_resize
from ppojob_trainer.data.media.sound_form import MODELS, SoundForm, read_sound_form
from ppojob_trainer.data.media.sounds import sound_of
from ppojob_trainer.data.media.video_forms import VideoForm
from ppojob_trainer.data.media.videos import clip_of

QWEN: Final = "Qwen2"
LIMITS: Final = {
    QWEN: (56 * 56, 28 * 28 * 1280),
    "Glm4v": (112 * 112, 28 * 28 * 15000),
    "Glm46V": (112 * 112, 28 * 28 * 15000),
}
_PATCH, _MERGE, _FRAMES = 14, 2, 2
_PIXTRAL_PATCH, _LONGEST = 16, 1024
_POOLED: Final = {"patch_size": 16, "pooling_kernel_size": 3}
_MOST_POOLED, _WINDOW = 280, 512
_PLACES: Final = ("position_embedding_size", 10_240), ("mm_posemb_size", 1_120)
_WITH_TOWER, _WITHOUT_TOWER = "Gemma4Image", "Gemma4UnifiedImage"
_AROUND_POOLED: Final = ("boi", 255_999), ("image", 258_880), ("eoi", 258_882)


@dataclass(frozen=True, slots=True)
class Grid(PictureForm):
    """Of Qwen and GLM: a picture is whole, in rows and columns of tokens, which positions tell.

    Attributes:
        patch: pixels of a side of what the tower sees at once.
        merge: such patches of a side of what becomes one token.
        least: pixels to which a smaller picture is enlarged, about.
        most: those that a larger one is reduced to.
        of_videos: how the model takes videos; None where it sees none.
        of_sounds: how it takes sounds; None where it hears none.
    """

    patch: int
    merge: int
    least: float
    most: float
    of_videos: VideoForm | None = None
    of_sounds: SoundForm | None = None

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        token = config.get("image_token_id", config.get("image_token_index"))
        hears = str(config.get("model_type")) in MODELS
        sounds = read_sound_form(config, folder) if hears else None
        if not isinstance(token, int) or (hears and sounds is None):
            return None
        size = processor.get("size") or {}
        least, most = (
            size.get(edge, limit)
            for edge, limit in zip(("shortest_edge", "longest_edge"), LIMITS[known], strict=True)
        )
        if known == QWEN:
            least = processor.get("min_pixels") or least
            most = processor.get("max_pixels") or most
        else:  # which counts pixels of a picture that is as many frames of a video
            frames = processor.get("temporal_patch_size", _FRAMES)
            least, most = least / frames, most / frames
        sides = processor.get("patch_size", _PATCH), processor.get("merge_size", _MERGE)
        # In transformers' order.
        videos = read_json(folder / NEWER).get("video_processor") or read_json(folder / OF_VIDEOS)
        form = VideoForm.of(config, videos or processor, math.prod(sides))
        return cls(token, known, *sides, least, most, form, sounds)

    @property
    def video(self) -> VideoForm | None:
        """See `PictureForm`."""
        return self.of_videos

    @property
    def sound(self) -> SoundForm | None:
        """See `PictureForm`."""
        return self.of_sounds

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`."""
        unit = self.patch * self.merge
        sides = width, height
        if self.processor != QWEN:
            sides = no_shorter(*sides, unit)
        return smart_resize(*sides, unit, self.least, self.most)

    def limited(self, wanted: Wanted) -> Self:
        """See `PictureForm`."""
        least, most = wanted.least or self.least, wanted.most or self.most
        return replace(self, least=least, most=max(least, most))

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        unit = self.patch * self.merge
        return [self.token] * (width // unit * (height // unit))

    def positions(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Time, height and width of each token of a text, which go on from the highest one.

        Of text all three count on; a picture has one time, and its rows and columns, and so has
        each clip of a video, whose rows and columns are the same. Tokens of a sound count on as
        text: each is as much later as a position is.
        """
        found: list[tuple[int, int, int]] = []
        unit = self.patch * self.merge
        begin = after = 0
        places = self.places(ids, pictures, later)
        for (start, *_), file in zip(places, unpacked(pictures), strict=True):
            if sound_of(file) is not None:
                continue
            clip = clip_of(file)
            across, down = (side // unit for side in self.sides(file))
            if clip is None or clip.begins:
                text = range(after, after + start - len(found))
                found += [(n,) * 3 for n in text]
                begin = text.stop
            time = begin + (clip.ahead if clip else 0)
            found += [(time, begin + y, begin + x) for y in range(down) for x in range(across)]
            after = max(begin + max(down, across), time + 1)
        found += [(n,) * 3 for n in range(after, after + len(ids) - len(found))]
        return [list(row) for row in zip(*found, strict=True)]


@dataclass(frozen=True, slots=True)
class Lines(PictureForm):
    """Of Mistral: a picture is whole, in lines of tokens with one more behind each of them.

    Attributes:
        line_end: the token behind a line.
        end: that behind the last one.
        unit: pixels of a side of what becomes one token.
        longest: pixels of a side at most.
        least: pixels to which a smaller picture is enlarged, about.
        most: those that a larger one is reduced to.
    """

    line_end: int
    end: int
    unit: int
    longest: int
    least: float = 1
    most: float = math.inf

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        token, marks = config.get("image_token_index"), added_tokens(folder)
        line_end, end = marks.get("[IMG_BREAK]"), marks.get("[IMG_END]")
        if not isinstance(token, int) or line_end is None or end is None:
            return None
        longest = (processor.get("size") or {}).get("longest_edge", _LONGEST)
        merge = config.get("spatial_merge_size", _MERGE)
        unit = config["vision_config"].get("patch_size", _PIXTRAL_PATCH) * merge
        return cls(token, known, line_end, end, unit, longest)

    @property
    def told(self) -> Settings:
        """See `PictureForm`."""
        return {"patch_size": self.unit}

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`."""
        pixels = width * height
        shrink = max(
            max(height, width) / self.longest,
            math.sqrt(pixels / self.most),
            min(1.0, math.sqrt(pixels / self.least)),
        )
        down, across = (
            max(1, -(-math.floor(side / shrink) // self.unit)) for side in (height, width)
        )
        return across * self.unit, down * self.unit

    def limited(self, wanted: Wanted) -> Self:
        """See `PictureForm`."""
        least, most = wanted.least or self.least, wanted.most or self.most
        return replace(self, least=least, most=max(least, most))

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        line = [*[self.token] * (width // self.unit), self.line_end]
        return [*(line * (height // self.unit))[:-1], self.end]


@dataclass(frozen=True, slots=True)
class Pooled(OwnSizes):
    """Of Gemma 4: a picture keeps its shape, and has as many tokens as fit; a token is a square.

    Attributes:
        begin: the token in front of those of a picture.
        end: the token behind them.
        unit: pixels of a side of what becomes one token.
        most: tokens of a picture at most.
        joined: whether the model is given the pixels of a token at once, for it has no tower.
        ahead: whether these see those behind them, in layers that see a window. Models that read
            the same tokens may differ in it.
    """

    begin: int
    end: int
    unit: int
    most: int
    joined: bool
    ahead: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        begin, token, end = (config.get(f"{name}_token_id", id_) for name, id_ in _AROUND_POOLED)
        if not {begin, token, end} <= set(added_tokens(folder).values()):
            return None
        tower, text = config["vision_config"], config["text_config"]
        patch, side = (processor.get(name, usual) for name, usual in _POOLED.items())
        most = processor.get("max_soft_tokens", _MOST_POOLED)
        is_of_tower = all(
            tower.get(name, usual) == processor.get(name, usual) for name, usual in _POOLED.items()
        )
        joined = known == _WITHOUT_TOWER
        needed, (name, usual) = (most, _PLACES[1]) if joined else (most * side, _PLACES[0])
        ahead = text.get("use_bidirectional_attention") == "vision"
        window = text.get("sliding_window", _WINDOW)
        # Beyond a window transformers lets tokens see ahead, and vLLM does not.
        if not is_of_tower or tower.get(name, usual) < needed or (ahead and window < most):
            return None
        return cls(token, _WITH_TOWER, begin, end, patch * side, most, joined, ahead)

    @property
    def told(self) -> Settings:
        """See `PictureForm`.

        transformers has no class for PIL that joins patches, which are the same pixels as one.
        """
        return {"patch_size": self.unit, "pooling_kernel_size": 1} if self.joined else {}

    @property
    def sees_ahead(self) -> bool:
        """See `PictureForm`."""
        return self.ahead

    @property
    def ahead_in_windows(self) -> bool:
        """See `PictureForm`."""
        return True

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`."""
        factor = math.sqrt(self.most * self.unit**2 / (width * height))
        across, down = (math.floor(factor * side / self.unit) for side in (width, height))
        if down == 0:
            across, down = min(width // height, self.most), 1
        elif across == 0:
            across, down = 1, min(height // width, self.most)
        return across * self.unit, down * self.unit

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        tokens = width // self.unit * (height // self.unit)
        return [self.begin, *[self.token] * tokens, self.end]
