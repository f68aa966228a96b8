"""What transformers and qwen-vl-utils make of videos, which are not loaded without torchvision.

Functions of transformers are taken out of its files, one by one; those of qwen-vl-utils 0.0.14
(`vision_process.py`) are repeated here, for sizes alone.
"""

import ast
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from padded_reference import pixels_of, processor_of, token_logprobs
from PIL import Image
from tiny_models import IMAGE, NAMES, PATCH, VIDEO, noise
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.images import clip_of, opened, packed, unpacked

FPS = 2.0
"""Frames of a second of the videos of tests."""


def own_function(path: str, name: str) -> Callable[..., Any]:
    tree = ast.parse((Path(transformers.__file__).parent / "models" / path).read_text())
    found = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    found.returns, found.decorator_list = None, []
    names: dict[str, Any] = {"torch": torch, "math": math}
    exec(compile(ast.Module([found], []), path, "exec"), names)
    function: Callable[..., Any] = names[name]
    return function


_PATCHIFY = own_function("qwen2_vl/video_processing_qwen2_vl.py", "patchify")


def _resized(
    height: int, width: int, factor: int, least: float | None = None, most: float | None = None
) -> tuple[int, int]:
    most = most if most is not None else 16384 * factor**2
    least = least if least is not None else 4 * factor**2
    h_bar = max(factor, round(height / factor) * factor)
    w_bar = max(factor, round(width / factor) * factor)
    if h_bar * w_bar > most:
        beta = math.sqrt((height * width) / most)
        h_bar = math.floor(height / beta / factor) * factor
        w_bar = math.floor(width / beta / factor) * factor
    elif h_bar * w_bar < least:
        beta = math.sqrt(least / (height * width))
        h_bar = math.ceil(height * beta / factor) * factor
        w_bar = math.ceil(width * beta / factor) * factor
    return h_bar, w_bar


def size_of_frames(
    ele: dict[str, Any], count: int, width: int, height: int, factor: int
) -> tuple[int, int]:
    """Width and height that `fetch_video` gives a list of frames, by way of `fetch_image`."""
    is_told = "resized_height" in ele and "resized_width" in ele
    told = (ele["resized_height"], ele["resized_width"], factor) if is_told else ()
    limits = ele.get("min_pixels"), ele.get("max_pixels")
    height, width = _resized(*told) if told else _resized(height, width, factor, *limits)
    nframes = math.ceil(count / 2) * 2
    least = ele.get("min_pixels", 128 * factor**2)
    total = ele.get("total_pixels", 128000 * factor * factor * 0.9)
    most = max(min(768 * factor**2, total / nframes * 2), int(least * 1.05))
    most = min(ele.get("max_pixels", most), most)
    height, width = _resized(*told) if told else _resized(height, width, factor, least, most)
    return width, height


def frames_of(count: int, size: tuple[int, int], seed: int = 0) -> list[bytes]:
    """A video of noise."""
    return [noise(seed * 100 + n, size) for n in range(count)]


def marks_of(form: ImageForm, clips: Sequence[bytes]) -> list[int]:
    """What a template writes for a video: its token, or that of each clip behind its time."""
    begins = len(form.marks(packed(clips)))
    token = NAMES.index(VIDEO)
    return [token] if begins == 1 else [one for n in range(begins) for one in (20 + n, token)]


def videos_in(files: Sequence[bytes]) -> list[list[Image.Image]]:
    """The frames of the videos whose clips are among files."""
    videos: list[list[Image.Image]] = []
    for clip in map(clip_of, files):
        if clip is not None:
            if clip.number == 0:
                videos.append([])
            videos[-1] += map(opened, clip.frames)
    return videos


def pixels_of_video(folder: Path, frames: Sequence[Image.Image]) -> tuple[Tensor, list[int]]:
    """Patches of frames that are as large as they are seen, and the grid of them."""
    processor = processor_of(folder)
    mean, std = (
        torch.tensor(one)[:, None, None] for one in (processor.image_mean, processor.image_std)
    )
    pixels = [torch.tensor([*one.tobytes()]).view(one.height, one.width, 3) for one in frames]
    video = torch.stack([(one.permute(2, 0, 1) / 255 - mean) / std for one in pixels])
    patches, *grid = _PATCHIFY(None, video[None], PATCH, 2, 2)
    return patches[0], grid


def inputs_of(folder: Path, ids: Tensor, shown: bytes) -> dict[str, Any]:
    """What transformers' whole model is given of a text with images and videos, (1, t)."""
    files = unpacked(shown)
    images = [one for one in files if clip_of(one) is None]
    given = pixels_of(folder, images) if images else {}
    if videos := videos_in(files):
        patches, grids = zip(*(pixels_of_video(folder, one) for one in videos), strict=True)
        given |= {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}
        if "tokens_per_second" in (folder / "config.json").read_text():
            given["second_per_grid_ts"] = torch.tensor([2 / FPS] * len(videos))
    kinds = (ids == NAMES.index(IMAGE)).int() + 2 * (ids == NAMES.index(VIDEO)).int()
    return {**given, "mm_token_type_ids": kinds}


def whole_logprobs_of_videos(
    model: PreTrainedModel, folder: Path, prompt: Tensor, shown: bytes, response: Tensor
) -> Tensor:
    """What transformers says of a response: frames in, log-probabilities out."""
    ids = torch.cat([prompt, response[:-1]])[None]
    given = inputs_of(folder, ids, shown)
    logits = model(input_ids=ids, use_cache=False, **given).logits[0, len(prompt) - 1 :]
    return token_logprobs(logits, response)[0]
