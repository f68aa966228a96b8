"""Models that are cut over ranks while they are loaded: no rank ever holds all of one."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.models.lora import add_adapters
from ppojob_trainer.models.weight_files import read_weights
from ppojob_trainer.parallel.boxes import Box, box_of, cut_like
from ppojob_trainer.parallel.fsdp import shard_model
from ppojob_trainer.parallel.world import World


def load_sharded(
    auto_class: Any,
    config: PretrainedConfig,
    folder: Path,
    dtype: torch.dtype,
    world: World,
    *,
    trust_remote_code: bool,
    lora: LoraSpec | None = None,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Build a model without weights, cut it, and read this rank's part of each weight.

    Arguments are those of `load_pretrained`, for a world of more than one rank.

    Returns:
        The model, and the names of weights that the folder does not hold: those are zero.

    Raises:
        ValueError: a weight has another shape, or a file cannot be read.
    """
    with torch.device("meta"):
        model = auto_class.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    if lora is not None:
        add_adapters(model, lora)
    shard_model(model, world)
    weights = read_weights(folder)
    if weights.problems:
        raise ValueError("; ".join(str(problem) for problem in weights.problems))
    parameters = dict(model.named_parameters())
    state = {}
    for name, parameter in parameters.items():
        box = box_of(parameter)
        path = weights.files.get(name)
        part = torch.zeros(box.local_shape) if path is None else _read_part(path, name, box)
        state[name] = nn.Parameter(cut_like(parameter, part.to(world.device, parameter.dtype)))
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    _restore_buffers(model, world.device)
    return model, frozenset(parameters.keys() - weights.files.keys())


def _read_part(path: Path, name: str, box: Box) -> Tensor:
    with safe_open(path, framework="pt") as file:
        stored = file.get_slice(name)
        shape = tuple(stored.get_shape())
        if shape != box.shape:
            raise ValueError(f"{name} has shape {shape}: the model needs {box.shape}")
        if box.numel == 0:
            return torch.empty(box.local_shape)
        part: Tensor = stored[box.slices]
        return part


def _restore_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Compute the rotary frequencies, which no folder holds and which the meta device swallowed."""
    base = model.base_model
    base.rotary_emb = type(base.rotary_emb)(config=model.config).to(device)
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    assert not left, f"{left[0]}: nobody computes this buffer"
