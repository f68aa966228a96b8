"""Image formats of models that read the whole image as a grid of tokens. Loads no torch.

Sources: transformers 5, `get_resize_output_image_size` of
`models/pixtral/image_processing_pil_pixtral.py`; `get_aspect_ratio_preserving_size` of
`models/gemma4/image_processing_pil_gemma4.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Self

from msgspec.structs import astuple
from PIL import Image

from ppojob_trainer.data.media.audio_form import AudioForm
from ppojob_trainer.data.media.image_files import added_tokens
from ppojob_trainer.data.media.image_form import ImageForm, ResizableImageForm
from ppojob_trainer.data.media.image_settings import (
    Gemma4Settings,
    MistralSettings,
    PixelLimits,
    QwenSettings,
)
from ppojob_trainer.data.media.images import audio_of, clip_of, unpacked
from ppojob_trainer.data.media.media_form import ProcessorArguments
from ppojob_trainer.data.media.video_forms import VideoForm, no_shorter, smart_resize

QWEN: Final = "Qwen2"
LIMITS: Final = {
    QWEN: (56 * 56, 28 * 28 * 1280),
    "Glm4v": (112 * 112, 28 * 28 * 15000),
    "Glm46V": (112 * 112, 28 * 28 * 15000),
}
_LONGEST: Final = 1024
_LIGHTON: Final = "lighton_ocr"
_PIXTRAL: Final = "llava"
"""Type of Pixtral's folders: LLaVA with another tower."""
_WITH_TOWER, _WITHOUT_TOWER = "Gemma4Image", "Gemma4UnifiedImage"


@dataclass(frozen=True, slots=True)
class QwenImages(ResizableImageForm):
    """Image format of Qwen and GLM: lines of tokens, with positions in three dimensions."""

    patch: int  # pixels of a side of a patch of the tower
    merge: int  # patches of a side that become one token
    of_videos: VideoForm | None = None  # the model's video format; None if it takes no videos
    of_audios: AudioForm | None = None  # its audio format; None if it takes no audios

    @classmethod
    def read(cls, kind: str, settings: QwenSettings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete."""
        del folder
        token = settings.image_token_id
        token = settings.image_token_index if token is None else token
        if token is None:
            return None
        size = settings.processor_size or PixelLimits()
        least: float = size.shortest_edge or LIMITS[kind][0]
        most: float = size.longest_edge or LIMITS[kind][1]
        if kind == QWEN:
            least = settings.processor_min_pixels or least
            most = settings.processor_max_pixels or most
        else:  # GLM's limits are those of a video that repeats the image
            frames = settings.processor_temporal_patch_size
            least, most = least / frames, most / frames
        patch, merge = settings.processor_patch_size, settings.processor_merge_size
        video = VideoForm.read(settings, patch * merge)
        return cls(token, kind, least, most, patch, merge, video)

    @property
    def video(self) -> VideoForm | None:
        return self.of_videos

    @property
    def audio(self) -> AudioForm | None:
        return self.of_audios

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        unit = self.patch * self.merge
        size = width, height
        if self.processor != QWEN:
            size = no_shorter(*size, unit)
        return smart_resize(*size, unit, self.least, self.most)

    def tokens(self, width: int, height: int) -> list[int]:
        unit = self.patch * self.merge
        return [self.token] * (width // unit * (height // unit))

    def positions(
        self, ids: Sequence[int], images: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Return time, height and width positions of the tokens of a text (M-RoPE).

        Text tokens have three equal positions, one above the highest before them. The tokens of a
        image, or of a clip of a video, have one time and their row and column. Tokens of an audio
        count as text.
        """
        found: list[tuple[int, int, int]] = []
        unit = self.patch * self.merge
        begin = after = 0
        places = self.places(ids, images, later)
        for (start, *_), file in zip(places, unpacked(images), strict=True):
            if audio_of(file) is not None:
                continue
            clip = clip_of(file)
            across, down = (side // unit for side in self.size_of(file))
            if clip is None or clip.has_placeholder:
                text = range(after, after + start - len(found))
                found += [(n,) * 3 for n in text]
                begin = text.stop
            time = begin + (clip.ahead if clip else 0)
            found += [(time, begin + y, begin + x) for y in range(down) for x in range(across)]
            after = max(begin + max(down, across), time + 1)
        found += [(n,) * 3 for n in range(after, after + len(ids) - len(found))]
        return [list(row) for row in zip(*found, strict=True)]


@dataclass(frozen=True, slots=True)
class MistralImages(ResizableImageForm):
    """Image format of Mistral, Pixtral and LightOnOCR: lines of tokens."""

    line_end: tuple[int, ...]  # the tokens after a line: one in Mistral
    end: tuple[int, ...]  # the tokens after the last line
    unit: int  # pixels of a side of a token
    # Pixels of whose multiples the sides of an image are: `unit` in Mistral. In LightOnOCR a rest
    # that is no whole token is not seen.
    multiple: int
    longest: int  # pixels of a side at most

    @classmethod
    def read(cls, kind: str, settings: MistralSettings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete."""
        added, size = added_tokens(folder), settings.processor_size
        longest = _LONGEST if size is None else size.longest_edge
        unit = settings.tower_patch_size
        if settings.model_type != _PIXTRAL:
            unit *= settings.spatial_merge_size
        elif settings.vision_feature_layer != -1 or (
            settings.vision_feature_select_strategy != "full"
        ):
            return None
        if settings.model_type == _LIGHTON:
            own, patch = settings.image_token_id, settings.processor_patch_size
            if own is None or own not in added.values() or patch is None:
                return None
            multiple, other = (patch, patch) if isinstance(patch, int) else astuple(patch)
            is_whole = multiple == other and not (unit % multiple or longest % multiple)
            if not is_whole or multiple % settings.tower_patch_size:
                return None
            return cls(own, kind, 1, math.inf, (), (), unit, multiple, longest)
        token, line_end = settings.image_token_index, added.get("[IMG_BREAK]")
        end = added.get("[IMG_END]")
        if token is None or line_end is None or end is None:
            return None
        return cls(token, kind, 1, math.inf, (line_end,), (end,), unit, unit, longest)

    @property
    def processor_arguments(self) -> ProcessorArguments:
        return {"patch_size": self.multiple}

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        across, down = self._rounded(width, height)
        return max(self.unit, across), max(self.unit, down)

    def enlarged(self, image: Image.Image) -> Image.Image:
        """Return an image of at least one token; transformers' processor may make it smaller."""
        if min(self._rounded(*image.size)) >= self.unit:
            return image
        return image.resize(self.target_size(*image.size), Image.Resampling.BICUBIC)

    def _rounded(self, width: int, height: int) -> tuple[int, int]:
        """Return the size to which transformers' processor resizes an image."""
        pixels = width * height
        shrink = max(
            max(height, width) / self.longest,
            math.sqrt(pixels / self.most),
            min(1.0, math.sqrt(pixels / self.least)),
        )
        across, down = (-(-math.floor(side / shrink) // self.multiple) for side in (width, height))
        return across * self.multiple, down * self.multiple

    def tokens(self, width: int, height: int) -> list[int]:
        line = [*[self.token] * (width // self.unit), *self.line_end]
        lines = line * (height // self.unit)
        return [*lines[: len(lines) - len(self.line_end)], *self.end]


@dataclass(frozen=True, slots=True)
class Gemma4Images(ImageForm):
    """Image format of Gemma 4: as many square tokens as fit; an image keeps its aspect ratio."""

    begin: int  # the token before those of an image
    end: int  # the token after them
    unit: int  # pixels of a side of a token
    most: int  # tokens of an image at most
    joined: bool  # whether the model has no tower, and so gets the pixels of a token as one patch
    # Whether attention among an image's tokens is bidirectional, in sliding-window layers. Models
    # that read the same tokens may differ in it.
    ahead: bool = field(default=False, compare=False)
    ahead_in_windows: ClassVar = True

    @classmethod
    def read(cls, kind: str, settings: Gemma4Settings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete or inconsistent."""
        begin, token, end = settings.boi_token_id, settings.image_token_id, settings.eoi_token_id
        if not {begin, token, end} <= set(added_tokens(folder).values()):
            return None
        patch, side = settings.processor_patch_size, settings.processor_pooling_kernel_size
        most = settings.processor_max_soft_tokens
        if joined := kind == _WITHOUT_TOWER:
            has_positions = settings.tower_mm_posemb_size >= most
        else:
            has_positions = settings.tower_position_embedding_size >= most * side
        ahead = settings.text_use_bidirectional_attention == "vision"
        # Beyond a window attention is bidirectional in transformers, and causal in vLLM.
        is_in_window = not ahead or settings.text_sliding_window >= most
        of_tower = settings.tower_patch_size, settings.tower_pooling_kernel_size
        is_of_tower = (patch, side) == of_tower
        if not (is_of_tower and has_positions and is_in_window):
            return None
        return cls(token, _WITH_TOWER, begin, end, patch * side, most, joined, ahead)

    @property
    def processor_arguments(self) -> ProcessorArguments:
        """See `MediaForm`.

        transformers has no PIL class that joins patches; a large patch has the same pixels.
        """
        return {"patch_size": self.unit, "pooling_kernel_size": 1} if self.joined else {}

    @property
    def sees_ahead(self) -> bool:
        return self.ahead

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        factor = math.sqrt(self.most * self.unit**2 / (width * height))
        across, down = (math.floor(factor * side / self.unit) for side in (width, height))
        if down == 0:
            across, down = min(width // height, self.most), 1
        elif across == 0:
            across, down = 1, min(height // width, self.most)
        return across * self.unit, down * self.unit

    def tokens(self, width: int, height: int) -> list[int]:
        tokens = width // self.unit * (height // self.unit)
        return [self.begin, *[self.token] * tokens, self.end]
