"""Engine factory: builds the engine of `spec.rollout`; libraries are imported only if chosen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.rollout.protocol import DTYPES, RolloutEngine


def build_engine(
    rollout: RolloutSpec,
    model_folder: Path,
    *,
    device: Literal["cpu", "cuda"],
    shares_device: bool,
    overrides: Mapping[str, Json],
    lora: LoraSpec | None,
    records_experts: bool,
) -> RolloutEngine:
    """Build the engine of a resolved spec; it sleeps until it gets weights.

    A collective of the role's torch world, to be called before the training model is built.
    `shares_device`: a training model will be on the device too. `overrides` are changes of the
    folder's config.json. `lora` are adapters that the engine applies unmerged; None for merged
    weights. With `records_experts` a mixture reports the experts of its tokens.
    """
    if rollout.replay is not None:
        return RolloutEngine()
    if rollout.engine == "vllm":
        from ppojob_trainer.rollout.vllm_engine import VllmEngine

        return VllmEngine(
            rollout,
            model_folder,
            device=device,
            shares_device=shares_device,
            overrides=overrides,
            lora=lora,
            records_experts=records_experts,
        )
    assert rollout.max_model_tokens is not None, "a run is resolved before it is started"
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from ppojob_trainer.models.families import FAMILIES
    from ppojob_trainer.models.lora import add_adapters
    from ppojob_trainer.models.model_classes import language_config
    from ppojob_trainer.models.transformers_modules import unify_modules
    from ppojob_trainer.models.vision_tower import attach_tower
    from ppojob_trainer.models.weight_files import read_weights
    from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine

    config = language_config(model_folder)
    options = {
        "config": change(config, overrides),
        "dtype": DTYPES[rollout.dtype],
        # PyTorch's kernels support no attention sinks.
        "attn_implementation": "eager" if FAMILIES[config.model_type].has_sinks else "sdpa",
        "trust_remote_code": False,
    }
    # Only `load_model` reads files of quantised weights.
    if read_weights(model_folder).form is not None:
        model = AutoModelForCausalLM.from_config(**options).eval()
    else:
        before = logging.get_verbosity()
        logging.set_verbosity_error()  # its warnings are about weights that come later
        model = AutoModelForCausalLM.from_pretrained(model_folder, **options)
        logging.set_verbosity(before)
    unify_modules(model)
    if lora is not None:
        add_adapters(model, lora)
    attach_tower(model, model_folder, DTYPES[rollout.dtype], torch.device(device))
    engine = HuggingFaceEngine(
        model.to(device),
        max_model_tokens=rollout.max_model_tokens,
        max_sequences=rollout.max_sequences,
        records_experts=records_experts,
    )
    engine.sleep()
    return engine
