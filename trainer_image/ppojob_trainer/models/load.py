"""Models out of Hugging Face folders."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.config_checks import check_config
from ppojob_trainer.models.json_objects import read_object
from ppojob_trainer.models.kinds import CRITIC, POLICY, REWARD, SCORE_BIAS, SCORE_WEIGHT, ModelKind
from ppojob_trainer.models.lora import add_adapters, draw_adapters, is_adapter
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.sharded_load import load_sharded
from ppojob_trainer.models.weight_values import check_values
from ppojob_trainer.parallel.fsdp import fill
from ppojob_trainer.parallel.world import World


def load_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    *,
    world: World | None = None,
    trust_remote_code: bool = False,
    lora: LoraSpec | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Load a causal language model.

    Args:
        folder: with config.json and the weights; nothing is fetched.
        dtype: of the weights.
        world: the ranks over which it is cut, and their device; None for this one on the CPU.
        trust_remote_code: run code that lies in the folder.
        lora: adapters beside its weights, which are frozen then; None for none.
        seed: of what adapters begin with.

    Returns:
        The model in evaluation mode.

    Raises:
        ConfigError: if the folder holds no model, one that cannot be trained here, or not all of
            its weights.
    """
    model, missing = load_pretrained(
        AutoModelForCausalLM,
        Path(folder),
        dtype,
        kind=POLICY,
        world=world,
        trust_remote_code=trust_remote_code,
        lora=lora,
    )
    _refuse_missing(missing, POLICY, folder)
    draw_adapters(model, seed)
    return model


def load_reward_model(
    folder: Path | str,
    dtype: torch.dtype = torch.bfloat16,
    *,
    world: World | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a reward model: a sequence classifier with one label, whose logit scores a text.

    As `load_model`, without gradients: it is never trained. `score` is its head.
    """
    model, missing = load_pretrained(
        AutoModelForSequenceClassification,
        Path(folder),
        dtype,
        kind=REWARD,
        world=world,
        trust_remote_code=trust_remote_code,
        num_labels=1,
    )
    _refuse_missing(missing, REWARD, folder)
    return model.requires_grad_(False)


def load_value_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    *,
    world: World | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load the critic's model, or make one of a language model: one number a token on the backbone.

    It is a token classifier with one label, as in verl, so that an export loads there and in
    transformers (`AutoModelForTokenClassification`).

    A folder without a value head, such as the policy's, gets one of zeros (Ziegler et al.,
    arXiv:1909.08593, in its code): the first values are 0 and the first advantages those of the
    rewards. Departs from verl, which draws as transformers does: on SmolLM2 that gives values of
    1.0 ± 0.5, and the critic first has to unlearn them.

    A sequence classifier with one label (a reward model) gives its weights and the bias starts at
    0. Dropout on the head is off, as in verl: the values of an update and those that it is clipped
    to are of one function.

    Otherwise as `load_model`; `score` is its head.
    """
    model, missing = load_pretrained(
        AutoModelForTokenClassification,
        Path(folder),
        dtype,
        world=world,
        kind=CRITIC,
        trust_remote_code=trust_remote_code,
        num_labels=1,
        classifier_dropout=0.0,
    )
    _refuse_missing(missing - {SCORE_WEIGHT, SCORE_BIAS}, CRITIC, folder)
    parameters = dict(model.named_parameters())
    if SCORE_WEIGHT in missing:
        fill(parameters[SCORE_WEIGHT], torch.zeros(1, model.config.hidden_size))
    if SCORE_BIAS in missing:
        fill(parameters[SCORE_BIAS], torch.zeros(1))
    return model


def load_pretrained(
    auto_class: Any,
    folder: Path,
    dtype: torch.dtype,
    *,
    kind: ModelKind,
    world: World | None = None,
    trust_remote_code: bool = False,
    lora: LoraSpec | None = None,
    **changes: object,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Load a model of any kind from config.json and safetensors.

    Args:
        auto_class: the kind, an AutoModel... of transformers.
        folder: with config.json and the weights; nothing is fetched.
        dtype: of the weights.
        kind: what it is to be used as.
        world: the ranks over which it is cut, and their device; None for this one on the CPU.
        trust_remote_code: run code that lies in the folder.
        lora: adapters to put in, without their values; None for none.
        changes: of the configuration, by its own names.

    Returns:
        The model in evaluation mode, and the names of weights that the folder does not hold:
        their values have no meaning.

    Raises:
        ConfigError: if the folder holds no model, one that cannot be used so, weights of other
            shapes, or values that no model has.
    """
    where = kind.where
    _refuse_config(folder, kind, trust_remote_code=trust_remote_code)
    world = world or World.alone()
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(folder, **options)
        for name, value in changes.items():
            setattr(config, name, value)
        model, missing = (_load_whole if world.size == 1 else load_sharded)(
            auto_class,
            config,
            folder,
            dtype,
            world,
            trust_remote_code=trust_remote_code,
            lora=lora,
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: got {folder}: the model cannot be loaded: {reason}; "
            "name a folder with config.json and model.safetensors of one model of the right kind"
        ) from error
    adapters = {name for name, _ in model.named_parameters() if is_adapter(name)}
    check_values(model, folder, where, world, missing | adapters)
    return model.eval(), missing - adapters


def _refuse_missing(missing: Set[str], kind: ModelKind, folder: Path | str) -> None:
    if missing:
        raise ConfigError(
            f"{kind.where}: got {folder}: it holds no {min(missing)}; all weights of the model"
        )


def _refuse_config(folder: Path, kind: ModelKind, *, trust_remote_code: bool) -> None:
    path = folder / "config.json"
    config = read_object(path, ModelReason.BAD_CONFIG)
    if isinstance(config, Problem):
        raise ConfigError(
            f"{kind.where}: got {folder}: its config.json cannot be read (got {config.got}: "
            f"{config.why}); name a folder in Hugging Face form"
        )
    problems = list(check_config(config, path, kind, trust_remote_code=trust_remote_code))
    if problems:
        raise ConfigError(map(str, problems))


def _load_whole(
    auto_class: Any,
    config: PretrainedConfig,
    folder: Path,
    dtype: torch.dtype,
    world: World,
    *,
    trust_remote_code: bool,
    lora: LoraSpec | None = None,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """As `load_sharded`, for a world of one."""
    model, info = auto_class.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
    )
    for name, got, needed in sorted(info["mismatched_keys"]):
        raise ValueError(f"{name} has shape {tuple(got)}: the model needs {tuple(needed)}")
    if lora is not None:
        add_adapters(model, lora)
    return model.to(world.device), frozenset(info["missing_keys"])
