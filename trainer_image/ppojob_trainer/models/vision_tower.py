"""The vision tower of a model: frozen, whole on each rank, loaded when it first sees a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from ppojob_trainer.data.pictures import PictureForm, opened, unpacked
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.config_files import TOWER
from ppojob_trainer.models.weight_files import read_weights

_EYES: Final = "vision_tower"
_TOWERS: Final = {
    "qwen2_vl": Qwen2VisionTransformerPretrainedModel,
    "qwen2_5_vl": Qwen2_5_VisionTransformerPretrainedModel,
}


class VisionTower:
    """What stands in the place of pictures in a model's embeddings.

    It is no module of the model, so nobody cuts, counts, trains or saves it.
    """

    def __init__(
        self, folder: Path, form: PictureForm, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.form = form
        self._folder, self._device, self._dtype = folder, device, dtype
        self._tower: nn.Module | None = None
        self._processor: Any = None

    def placed(
        self,
        embeddings: Tensor,
        places: Tensor,
        pictures: Sequence[bytes],
        rows: Tensor | None = None,
    ) -> Tensor:
        """Embeddings (t, h) with what the tower says of pictures at the places of their tokens.

        Places (n,) int64 are in the order of the prompts, whose pictures are `packed`; where they
        are not all, `rows` (n,) int64 are their numbers among all.
        """
        files = [file for prompt in pictures for file in unpacked(prompt)]
        said = torch.cat(self.seen(files)).to(embeddings.dtype)
        return embeddings.index_copy(0, places, said if rows is None else said[rows])

    @torch.no_grad()
    def seen(self, files: Sequence[bytes]) -> tuple[Tensor, ...]:
        """What it says of encoded pictures: (tokens, h) of each."""
        tower = self._loaded()
        pixels = self._processor(images=[opened(file) for file in files], return_tensors="pt")
        grids = pixels["image_grid_thw"]
        said: Tensor = tower(
            pixels["pixel_values"].to(self._device, self._dtype),
            grid_thw=grids.to(self._device),
        ).pooler_output
        return torch.split(said, (grids.prod(-1) // self.form.merge**2).tolist())

    def _loaded(self) -> nn.Module:
        if self._tower is not None:
            return self._tower
        config = AutoConfig.from_pretrained(self._folder, local_files_only=True)
        with torch.random.fork_rng(devices=[]):
            tower = _TOWERS[config.model_type]._from_config(config.vision_config)
        files, state = read_weights(self._folder).files, {}
        for name in tower.state_dict():
            if (path := files.get(f"{TOWER}{name}")) is None:
                raise ConfigError(
                    f"spec.model.path: got {self._folder}: it holds no {TOWER}{name}; all weights"
                )
            with safe_open(path, framework="pt") as file:
                state[name] = file.get_tensor(f"{TOWER}{name}")
        tower.load_state_dict(state)
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(self._folder)
        for weight in tower.parameters():  # angles of positions stay in float32, as transformers'
            weight.data = weight.data.to(self._dtype)
        self._tower = tower.to(self._device).eval().requires_grad_(False)
        return self._tower


def give_tower(model: nn.Module, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Let a language model have the tower of its folder, if there is one."""
    if (form := PictureForm.read(folder)) is not None:
        setattr(model, _EYES, VisionTower(folder, form, device, dtype))


def tower_of(model: nn.Module) -> VisionTower | None:
    """The tower of a language model; None where it sees no pictures."""
    tower: VisionTower | None = getattr(model, _EYES, None)
    return tower
