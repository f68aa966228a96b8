"""Loading of models from Hugging Face folders, sharded over the ranks as they are read."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.falcon_h1.modeling_falcon_h1 import compute_mup_vector

from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_files import WEIGHTS_FILE, check_adapters
from ppojob_trainer.models.adapter_names import is_adapter, peft_name, saved_name
from ppojob_trainer.models.architectures import EMBEDDING, HEAD, saved_weights
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.models.config_files import TOWER, folder_has_tower, layers_name_in, read_config
from ppojob_trainer.models.experts import experts_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import CORRECTION, EXPERT_BIAS
from ppojob_trainer.models.folder_checks import check_changed_config
from ppojob_trainer.models.kinds import POLICY, REWARD, ModelKind
from ppojob_trainer.models.log_partition import (
    add_log_partition,
    draw_log_partition,
    is_log_partition,
)
from ppojob_trainer.models.lora import add_adapters, draw_adapters, of_peft_form, seed_dropout
from ppojob_trainer.models.mixtures import stays_float32
from ppojob_trainer.models.model_classes import class_of, language_config
from ppojob_trainer.models.mtp_layers import add_mtp_layer
from ppojob_trainer.models.nf4 import is_scales, nf4_layers, quantised, scales_of
from ppojob_trainer.models.pipeline_stages import keep_stage, outline_of, stage_of
from ppojob_trainer.models.stored_tensors import read_part, read_tensor
from ppojob_trainer.models.tensor_plans import styles_of
from ppojob_trainer.models.towers import new_tower
from ppojob_trainer.models.transformers_modules import recurrent_layers, unify_modules
from ppojob_trainer.models.vision_tower import attach_tower, trained_tower
from ppojob_trainer.models.weight_files import listed, read_weights
from ppojob_trainer.models.weights import Weights
from ppojob_trainer.parallel.boxes import Box, box_of, copy_pieces, local_part, shard_like
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.experts import ExpertRanks
from ppojob_trainer.parallel.fsdp import fill, shard_model
from ppojob_trainer.parallel.pipeline import PipelineRanks
from ppojob_trainer.parallel.world import World

_NOTHING: Final[Mapping[str, Json]] = {}
_MAY_BE_ZERO: Final[tuple[str, ...]] = (
    *(".bias", "_bias", ".sinks", CORRECTION, EXPERT_BIAS, "score.weight"),
    *(".o_proj.weight", ".down_proj.weight", ".experts.down_proj", ".w2.weight"),
)
"""Parameters that may be zero: biases, identity-initialised blocks, a new value head."""


def load_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    *,
    kind: ModelKind = POLICY,
    world: World | None = None,
    lora: LoraSpec | None = None,
    seed: int = 0,
    overrides: Mapping[str, Json] = _NOTHING,
    with_tower: bool = False,
    learns_log_z: bool = False,
    with_mtp: bool = False,
) -> PreTrainedModel:
    """Load a model for its use in a job, in evaluation mode; a value model from any causal LM.

    A policy is a causal language model. A reward model is a sequence classifier with one label,
    whose logit scores a text; only one under training has gradients. A critic is a token
    classifier with one label, as in verl.

    If a trained value model lacks its head `score`, it gets one of zeros (Ziegler et al.,
    arXiv:1909.08593, in its code), so the first advantages are those of the rewards. verl draws it
    as transformers does: on SmolLM2 that makes values of 1.0 ± 0.5, which the critic first has to
    unlearn. The head has no dropout, as in verl, and is trained with adapters too.

    It is sharded over the ranks of `world`, on their device; None for this one on the CPU. With
    `lora` the weights are frozen, and `seed` is that of the initial adapters. `overrides` are those
    of `config_changes`. With a tower, that is a trained module of it, else it is frozen.
    `learns_log_z` adds the network of `log_partition`, `with_mtp` the folder's MTP layer.

    Raises:
        ConfigError: the folder holds no model, an unsupported one, not all of its weights, or
            non-finite values.
    """
    folder, world = Path(folder), world or World.alone()
    tower = folder if with_tower and folder_has_tower(folder) else None
    additions = _Additions(lora, tower, learns_log_z=learns_log_z, has_mtp=with_mtp)
    model, missing = _load(kind, folder, dtype, world, additions, overrides)
    parameters = dict(model.named_parameters())
    for name in sorted(missing & parameters.keys()):
        fill(parameters[name], torch.zeros(parameters[name].shape))
    _init_adapters(model, lora, seed, layers=layers_name_in(folder))
    draw_log_partition(model, seed)
    attach_tower(model, folder, dtype, world.device)
    return model.requires_grad_(False) if kind == REWARD else model


@dataclass(frozen=True, slots=True)
class _Additions:
    """Parts that are added to transformers' model."""

    lora: LoraSpec | None
    tower: Path | None  # folder of a vision tower that is trained
    learns_log_z: bool
    has_mtp: bool  # from the folder, but not in transformers' class

    def add_to(self, model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
        """Add them to a meta model, and convert all of it to its dtype and common form."""
        if self.tower is not None:
            with torch.device("meta"):
                setattr(model, TOWER.rstrip("."), new_tower(self.tower, dtype))
        if self.has_mtp:
            add_mtp_layer(model)
        unify_modules(model)
        cast_weights(dtype, model)
        if self.lora is not None:
            add_adapters(model, self.lora, device)
        if self.learns_log_z:
            add_log_partition(model)

    @staticmethod
    def has(name: str) -> bool:
        return is_adapter(name) or is_log_partition(name) or is_scales(name)


def _init_adapters(
    model: PreTrainedModel, lora: LoraSpec | None, seed: int, *, layers: str
) -> None:
    """Initialise adapters, or read those of their folder, which is checked."""
    seed_dropout(model, seed)
    if lora is None or lora.path is None:
        draw_adapters(model, seed)
        return
    path, saved = Path(lora.path) / WEIGHTS_FILE, saved_weights(lora)
    with safe_open(path, framework="pt") as file:
        for name, parameter in model.named_parameters():
            if not is_adapter(name) and name not in saved:
                continue
            stored = saved_name(name) if name in saved else peft_name(name, lora, layers=layers)
            values = file.get_tensor(stored)
            if not values.isfinite().all():
                raise ConfigError(
                    f"{path}: got values that are NaN or infinite in {stored}: nothing "
                    "can be computed with them; the adapters as they were trained"
                )
            if name == EMBEDDING and HEAD not in saved:
                _check_tied(file, path, values)
            fill(parameter, of_peft_form(name, values, parameter.shape))


def _check_tied(file: Any, path: Path, embedding: Tensor) -> None:
    """Refuse an output layer that PEFT has trained apart from the embedding of a tied model."""
    head = saved_name(HEAD)
    if head in file.keys() and not torch.equal(embedding, file.get_tensor(head)):  # noqa: SIM118
        raise ConfigError(
            f"{path}: got an embedding and an output layer that differ: the model has one weight "
            "for both; adapters that PEFT trained with ensure_weight_tying"
        )


def _load(
    kind: ModelKind,
    folder: Path,
    dtype: torch.dtype,
    world: World,
    additions: _Additions,
    overrides: Mapping[str, Json],
) -> tuple[PreTrainedModel, Set[str]]:
    """Return a model in evaluation mode, and its optional weights, zeros, that no file holds."""
    refuse_config(folder, kind, overrides)
    section = kind.where.removesuffix("path") + "lora"
    lora = additions.lora
    if lora is not None and (problems := list(check_adapters(lora, str(folder), section))):
        raise ConfigError(map(str, problems))
    try:
        config = language_config(folder)
        change(config, dict.fromkeys(FAMILIES[config.model_type].dropouts, 0.0))
        change(config, overrides)
        with torch.device("meta"):
            model = class_of(config, kind.made_as)._from_config(config, dtype=dtype)
        additions.add_to(model, dtype, world.device)
        missing = _shard_and_read(model, folder, dtype, world)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{kind.where}: got {folder}: the model cannot be loaded: {reason}; "
            "name a folder with config.json and model.safetensors of one model of the right kind"
        ) from error
    ours = {name for name, _ in outline_of(model).named_parameters() if additions.has(name)}
    _check_values(model, folder, kind.where, world, missing | ours)
    missing -= ours
    if needed := missing - kind.may_lack:
        raise ConfigError(
            f"{kind.where}: got {folder}: it holds no {min(needed)}; all weights of the model"
        )
    return model.eval(), missing


def refuse_config(folder: Path, kind: ModelKind, overrides: Mapping[str, Json]) -> None:
    """Raise ConfigError, a line each, for what is unreadable or unsupported in a config.json."""
    path = folder / "config.json"
    config = read_config(path)
    if isinstance(config, Problem):
        raise ConfigError(
            f"{kind.where}: got {folder}: its config.json cannot be read (got {config.got}: "
            f"{config.why}); name a folder in Hugging Face form"
        )
    _, problems = check_changed_config(config, overrides, path, kind)
    if problems:
        raise ConfigError(map(str, problems))


def cast_weights(dtype: torch.dtype, model: nn.Module) -> None:
    """Convert all weights to a dtype, except those that stay in float32.

    transformers keeps more of some families in float32, ERNIE's routers for one: FSDP cannot shard
    layers of two dtypes.
    """
    for name, parameter in model.named_parameters():
        if not stays_float32(name):
            parameter.data = parameter.data.to(dtype)


def _shard_and_read(
    model: PreTrainedModel, folder: Path, dtype: torch.dtype, world: World
) -> set[str]:
    """Shard a meta model, and read this rank's shard of each weight.

    Returns the names of weights, of any stage, that the folder does not hold: those are zero.

    Raises:
        ValueError: a weight has another shape, or a file cannot be read.
    """
    keep_stage(model, PipelineRanks.of(world), ExpertRanks.of(world))
    styles = styles_of(model) if world.dims.tensor > 1 else {}
    if world.size > 1:
        shard_model(model, world, styles, experts_of(model))
    weights = read_weights(folder)
    if weights.problems:
        raise ValueError("; ".join(str(problem) for problem in weights.problems))
    state = _own_parts(model, weights, dtype, world.device)
    model.load_state_dict(state, strict=False, assign=True)
    if EMBEDDING in state:
        model.tie_weights()
    _restore_buffers(model, world.device)
    return {name for name, _ in outline_of(model).named_parameters()} - weights.files.keys()


def _own_parts(
    model: PreTrainedModel, weights: Weights, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Return this rank's shards of a sharded model by name; zeros where the folder has nothing."""
    parameters = dict(model.named_parameters())
    matrices = nf4_layers(model)
    state: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        if is_scales(name):
            continue  # scales are made with their codes
        box = box_of(parameter)
        if name in matrices:  # ranks have rows of it
            shape = matrices[name].outline.shape
            box = Box(shape, box.start, (box.stop[0], shape[1]), box.pieces)
        part = torch.zeros(box.local_shape)
        if name in weights.files:
            part = read_part(weights, name, box)
        # A trained value head is wider than the frozen weights, but loads their values.
        kind = part.dtype if stays_float32(name) else dtype
        rounded = part.to(device, kind)
        made = {name: rounded.to(parameter.dtype)}
        if name in matrices:
            made = dict(zip((name, scales_of(name)), quantised(rounded), strict=True))
        for one, values in made.items():
            own = shard_like(parameters[one], _own(values))
            is_trained = values.is_floating_point()
            state[one] = copy_pieces(own, nn.Parameter(own, requires_grad=is_trained))
    for name, buffer in model.named_buffers():
        if name.startswith(TOWER) and name in weights.files:  # Gemma 4's clips, replicated
            state[name] = read_tensor(weights, name).view_as(buffer).to(device, buffer.dtype)
    return state


def _own(weight: Tensor) -> Tensor:
    """Copy a weight into memory that can be freed, unlike that of a file's reader."""
    return weight if weight.untyped_storage().resizable() else weight.clone()


def _restore_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Compute the buffers that no folder holds: RoPE frequencies, scales of Gemma and Falcon."""
    base: Any = model.base_model
    if (rotary := getattr(base, "rotary_emb", None)) is not None:  # Mamba hybrids may have none
        base.rotary_emb = type(rotary)(config=model.config).to(device)
    _restore_buffers_of_layers(model, base, device)
    tower = trained_tower(model)
    for module in () if tower is None else list[Any](tower.modules()):
        for name, part in module.named_children():
            if list(part.buffers()) and not list(part.parameters()):  # RoPE frequencies
                setattr(module, name, type(part)(module.config).to(device))
        if "position_ids" in dict(module.named_buffers(recurse=False)):  # of Siglip's patches
            module.position_ids = torch.arange(module.position_ids.shape[-1], device=device)[None]
    for embedding in base.children():
        if (scale := getattr(embedding, "scalar_embed_scale", None)) is not None:
            embedding.embed_scale = torch.tensor(scale, dtype=torch.float32, device=device)
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    assert not left, f"{left[0]}: this buffer is not computed"


def _restore_buffers_of_layers(model: PreTrainedModel, base: Any, device: torch.device) -> None:
    of_layers: Any = getattr(base, "rotary_embs", ())  # Granite's
    for number, rotary in enumerate(of_layers):
        of_layers[number] = type(rotary)(config=rotary.config).to(device)
    for _, mixer in recurrent_layers(model):
        if hasattr(mixer, "mup_vector"):
            kind = mixer.dt_bias.dtype  # as transformers makes it
            mixer.mup_vector = compute_mup_vector(model.config).to(device, kind)


def _check_values(
    model: PreTrainedModel, folder: Path, where: str, world: World, absent: Set[str]
) -> None:
    """Refuse weights that are not finite, or were never written; a collective of all ranks.

    A download that was interrupted may leave zeros. `absent` weights are not checked.
    """
    held, stage = dict(model.named_parameters()), stage_of(model)
    # For NF4 codes the scales show whether elements were finite and present.
    held |= {name: held[scales_of(name)] for name in nf4_layers(model)}
    # The first of the ranks that replicate a weight checks it.
    parts = {
        name: local_part(held[name].detach())
        if name in held and stage.is_first_copy(name, held[name])
        else torch.empty(0)
        for name, _ in outline_of(model).named_parameters()
        if name not in absent
    }
    # A shard of an embedding may hold only rows of padding tokens, all of them zero.
    own = [float((~part.isfinite()).sum()) for part in parts.values()]
    own += [float(part.count_nonzero()) for part in parts.values()]
    counts = sum_over_ranks(world, own)
    may_be_zero = _MAY_BE_ZERO
    if "centred" in FAMILIES[model.config.model_type].norm_type:
        may_be_zero += ("norm.weight",)
    halves = counts[: len(parts)], counts[len(parts) :]
    broken, filled = (dict(zip(parts, half, strict=True)) for half in halves)
    bad = [name for name, count in broken.items() if count]
    empty = [name for name, count in filled.items() if not (count or name.endswith(may_be_zero))]
    many = f"{sum(broken.values()):.0f} values that are NaN or infinite"
    found = (
        (many, bad, "nothing can be computed with them"),
        ("only zeros", empty, "the file was never filled"),
    )
    problems = [
        f"{where}: got {got} in {listed(names)} of {folder}: {why}; the trained weights"
        for got, names, why in found
        if names
    ]
    if problems:
        raise ConfigError(problems)
