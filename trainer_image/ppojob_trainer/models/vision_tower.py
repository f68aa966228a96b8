"""Vision tower (or audio encoder) of a model: a module of the model if trained, else separate.

A frozen one, or an engine's, is replicated on each rank and loaded with the first image.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ppojob_trainer.data.media.image_form import audio_form_of
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.image_grids import MistralImages
from ppojob_trainer.data.media.image_squares import Lfm2VlImages
from ppojob_trainer.data.media.images import audio_of, clip_of, opened, unpacked
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.config_files import TOWER
from ppojob_trainer.models.stored_tensors import read_tensor
from ppojob_trainer.models.towers import new_tower
from ppojob_trainer.models.weight_files import read_weights
from ppojob_trainer.parallel.boxes import local_part

_ATTRIBUTE: Final = "vision_tower"
_FILTERS: Final = {2: "bilinear", 3: "bicubic"}
"""Of `interpolate`, by Pillow's numbers."""
_PROCESSORS: Final = (
    *("Qwen2VLImageProcessorPil", "Glm4vImageProcessorPil", "Glm46VImageProcessorPil"),
    *("GotOcr2ImageProcessorPil", "PixtralImageProcessorPil", "Gemma3ImageProcessorPil"),
    *("Gemma4ImageProcessorPil", "Idefics3ImageProcessorPil", "SmolVLMImageProcessorPil"),
    *("CLIPImageProcessorPil", "SiglipImageProcessorPil", "LlavaImageProcessorPil"),
    *("LlavaNextImageProcessorPil", "LlavaOnevisionImageProcessorPil"),
    *("Ovis2ImageProcessorPil", "WhisperFeatureExtractor"),
)


class VisionTower:
    """Replaces image tokens by features in a model's embeddings; may add deep features to layers.

    Audio encoders and audio are treated alike.

    A trained tower is a module of its model. A frozen one is not, so it is neither sharded,
    counted, trained nor saved.
    """

    def __init__(
        self,
        folder: Path,
        form: MediaForm,
        device: torch.device,
        dtype: torch.dtype,
        trained: nn.Module | None = None,
    ) -> None:
        self.form = form
        self._folder, self._device, self._dtype = folder, device, dtype
        self._tower = trained
        self.is_trained = trained is not None
        self._processors: dict[str, Any] = {}

    def embed_images(
        self,
        embeddings: Tensor,
        places: Tensor,
        images: Sequence[bytes],
        rows: Tensor | None = None,
    ) -> dict[str, Tensor | list[Tensor]]:
        """Return the arguments of transformers' decoder for prompts with images.

        Embeddings are (b, t, h) of all tokens, `places` (n,) int64 the image tokens among the
        b * t, `images` the images of the prompts in this order, those of each `packed`, and
        `rows` (n,) int64 the rows of their features for the places; None for all.
        """
        files = [file for prompt in images for file in unpacked(prompt)]
        features = torch.cat(self.encode(files)).to(embeddings.dtype)
        features = features if rows is None else features[rows]
        first, *deep = torch.split(features, embeddings.shape[-1], dim=-1)
        flat = embeddings.flatten(0, 1).index_copy(0, places, first)
        inputs: dict[str, Tensor | list[Tensor]] = {"inputs_embeds": flat.view_as(embeddings)}
        if deep:
            mask = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
            mask[places] = True
            inputs["visual_pos_masks"] = mask.view(embeddings.shape[:-1])
            inputs["deepstack_visual_embeds"] = deep
        return inputs

    def encode(self, files: Sequence[bytes]) -> list[Tensor]:
        """Encode images to features: (tokens, h) of each.

        With deep features for the first d layers, (tokens, (1 + d) * h). Each image is encoded
        alone and once: memory is that of one, and features do not depend on the batch.
        """
        features = {file: self._encode(file) for file in dict.fromkeys(files)}
        return [features[file] for file in files]

    def add_zero_gradients(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings (b, t, h) unchanged, with zero gradients for a trained tower.

        Ranks reduce the gradients of all its weights, also in a pass without images.
        """
        if not (self.is_trained and torch.is_grad_enabled()):
            return embeddings
        weights = map(local_part, self._loaded().parameters())
        return embeddings + sum(one.flatten()[:1].sum() * 0.0 for one in weights)

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Load the tower's weights out of those of a whole model; yield the others."""
        state: dict[str, Tensor] = {}
        for name, tensor in tensors:
            if not name.startswith(TOWER):
                yield name, tensor
                continue
            state = state or self._loaded().state_dict()
            state[name.removeprefix(TOWER)].copy_(tensor)

    def _encode(self, file: bytes) -> Tensor:
        tower = self._loaded()
        inputs = self._process(file)
        pixels = inputs.pop("pixel_values").to(self._device, self._dtype)
        sizes = {name.removeprefix("image_"): one.to(self._device) for name, one in inputs.items()}
        with torch.set_grad_enabled(self.is_trained and torch.is_grad_enabled()):
            output = tower(pixels, **sizes)
        return torch.cat([output.pooler_output, *getattr(output, "deepstack_features", ())], -1)

    def _processor(self, form: MediaForm) -> Any:
        if form.processor not in self._processors:
            name = next(name for name in _PROCESSORS if name.startswith(form.processor))
            processor = getattr(transformers, name).from_pretrained(self._folder)
            self._processors[form.processor] = processor
        return self._processors[form.processor]

    def _process(self, file: bytes) -> Any:
        """Return the tower's inputs for an image, a clip or audio."""
        audio_form = audio_form_of(self.form)
        if audio_form is not None and (samples := audio_of(file)) is not None:
            options = {"sampling_rate": audio_form.rate, "return_attention_mask": True}
            options["max_length"] = audio_form.read(len(samples))
            made = self._processor(audio_form)(samples, return_tensors="pt", **options)
            frames = made["attention_mask"].sum(-1)
            return {"pixel_values": made["input_features"], "frames": frames}
        if isinstance(self.form, Lfm2VlImages):
            return tower_inputs(opened(file), self.form)
        processor = self._processor(self.form)
        if (clip := clip_of(file)) is None:
            options, image = dict(self.form.processor_arguments), opened(file)
            image = self.form.enlarged(image) if isinstance(self.form, MistralImages) else image
            return processor(images=[image], return_tensors="pt", **options)
        frames = [opened(one) for one in clip.frames]
        made = processor(images=frames, do_resize=False, return_tensors="pt")
        # The processor repeats an image to several equal frames: take one of each.
        count, (first, *_) = len(frames), made.pop("image_grid_thw")
        each = made.pop("pixel_values").unflatten(-1, (3, count, -1)).chunk(count)
        pixels = torch.stack([one[:, :, n] for n, one in enumerate(each)], dim=2).flatten(1)
        return {"pixel_values": pixels, "image_grid_thw": first[None]}

    def _loaded(self) -> nn.Module:
        if self._tower is not None:
            return self._tower
        with torch.random.fork_rng(devices=[]):
            tower = new_tower(self._folder, self._dtype)
        weights, state = read_weights(self._folder), {}
        for name in tower.state_dict():
            if f"{TOWER}{name}" not in weights.files:
                raise ConfigError(
                    f"spec.model.path: got {self._folder}: it holds no {TOWER}{name}; all weights"
                )
            state[name] = read_tensor(weights, f"{TOWER}{name}")
        tower.load_state_dict(state)
        for weight in tower.parameters():  # RoPE frequencies stay in float32, as in transformers
            weight.data = weight.data.to(self._dtype)
        self._tower = tower.to(self._device).eval().requires_grad_(False)
        return self._tower


def attach_tower(model: nn.Module, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Attach a folder's tower, if it has one, to the language model, or wrap a trained one."""
    if (form := read_form(folder)) is not None:
        setattr(model, _ATTRIBUTE, VisionTower(folder, form, device, dtype, trained_tower(model)))


def trained_tower(model: nn.Module) -> PreTrainedModel | None:
    """Return the trained tower within a model; None without one, or at another stage."""
    tower = getattr(model, TOWER.rstrip("."), None)
    return tower if isinstance(tower, PreTrainedModel) else None


def tower_of(model: nn.Module) -> VisionTower | None:
    """Return the tower of a language model; None if it takes no images."""
    tower: VisionTower | None = getattr(model, _ATTRIBUTE, None)
    return tower


def tower_inputs(image: Image.Image, form: Lfm2VlImages) -> dict[str, Tensor]:
    """Return the inputs of LFM2-VL's tower for an image, which is cut into tiles.

    transformers has this image processor for torchvision only, which is not installed. These are
    its numbers to the bit where the CPU has AVX2: there torchvision resizes bytes by PyTorch's
    `interpolate`, too (transformers 5, `models/lfm2_vl/image_processing_lfm2_vl.py`).

    Returns:
        `pixel_values`, (n, y x 3) float32 patches of the tiles, row by row, then of the whole
        image, and `spatial_shapes`, (tiles, 2) int64 rows and columns of the patches of each.
    """
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    columns, rows = form.grid(*image.size)
    across, down = form.whole(*image.size)
    parts: list[Tensor] = []
    if rows:
        large = _resized(pixels, (rows * form.tile, columns * form.tile), form)
        lines = torch.split(large, form.tile, dim=2)
        parts += [tile for line in lines for tile in torch.split(line, form.tile, dim=3)]
    if form.has_whole(rows):
        parts.append(_resized(pixels, (down * form.unit, across * form.unit), form))
    shapes = [[side // form.patch for side in one.shape[2:]] for one in parts]
    patches = torch.cat([_patches(one, form) for one in parts])
    return {"pixel_values": patches, "spatial_shapes": torch.tensor(shapes)}


def _resized(pixels: Tensor, size: tuple[int, int], form: Lfm2VlImages) -> Tensor:
    """Resize (1, 3, y, x) bytes."""
    if pixels.shape[2:] == size:
        return pixels
    mode = _FILTERS[form.resample]
    return functional.interpolate(pixels, size, mode=mode, align_corners=False, antialias=True)


def _patches(pixels: Tensor, form: Lfm2VlImages) -> Tensor:
    """Normalize (1, 3, y, x) bytes, and cut them into patches (n, y x 3)."""
    # In the order of transformers' products.
    mean, std = (
        (torch.tensor(one) * (1.0 / form.scale)).view(3, 1, 1) for one in (form.mean, form.std)
    )
    values, side = (pixels.float() - mean) / std, form.patch
    down, across = (length // side for length in values.shape[2:])
    cut = values.reshape(3, down, side, across, side)
    return cut.permute(1, 3, 2, 4, 0).reshape(-1, side * side * 3)
