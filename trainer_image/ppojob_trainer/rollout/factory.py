"""Engine factory: builds the engine of the `rollout` section; libraries load only if chosen."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.rollout.protocol import (
    DTYPES,
    Finished,
    Request,
    RolloutEngine,
    RolloutError,
)


class NoEngine:
    """The engine of a rank that generates nothing.

    It takes no memory, and no weights: the trainer's weights are never gathered for it.
    """

    def __init__(self) -> None:
        self._version = 0

    @property
    def policy_version(self) -> int:
        """See `RolloutEngine`."""
        return self._version

    def submit(self, request: Request) -> None:
        """Refuse: this rank has no rows to generate.

        Raises:
            RolloutError: always.
        """
        raise RolloutError(f"request {request.request_id!r}: this job generates nothing")

    def step(self) -> list[Finished]:
        """Return nothing: no request runs."""
        return []

    def has_work(self) -> bool:
        """Return False: there is no work."""
        return False

    def abort(self, request_id: str) -> None:
        """Ignore the id: all ids are unknown."""

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Store the version alone; all ranks leave `tensors` as they are."""
        self._version = version

    def reset_cache(self) -> None:
        """Do nothing: there is no cache."""

    def counts(self) -> dict[str, int]:
        """Return no counters."""
        return {}

    def sleep(self) -> None:
        """Do nothing: it holds no memory."""

    def close(self) -> None:
        """Do nothing: it holds no resources."""


def build_engine(
    rollout: RolloutSpec,
    model_folder: Path,
    *,
    device: Literal["cpu", "cuda"],
    shares_device: bool,
    overrides: Mapping[str, Json],
    lora: LoraSpec | None,
    tells_experts: bool,
) -> RolloutEngine:
    """Build the engine that `rollout` names; it sleeps until it is given weights.

    Call it after the role's torch world is up and before the training model is built: it is
    collective over that world.

    The spec is that of a resolved run; the folder is one of Hugging Face. `shares_device` says
    whether a training model will be on the device too. `overrides` are changes of the folder's
    config.json (`config_changes`). `lora` are adapters that the engine applies unmerged; None if it
    gets merged weights. `tells_experts` asks it to report the experts that tokens of a mixture were
    routed to.
    """
    if rollout.replay is not None:
        return NoEngine()
    if rollout.engine == "vllm":
        from ppojob_trainer.rollout.vllm_engine import VllmEngine

        return VllmEngine(
            rollout,
            model_folder,
            device=device,
            shares_device=shares_device,
            overrides=overrides,
            lora=lora,
            tells_experts=tells_experts,
        )
    return _huggingface_engine(rollout, model_folder, device, overrides, lora, tells_experts)


def _huggingface_engine(
    rollout: RolloutSpec,
    model_folder: Path,
    device: Literal["cpu", "cuda"],
    overrides: Mapping[str, Json],
    lora: LoraSpec | None,
    tells_experts: bool,
) -> RolloutEngine:
    """Build the engine over a model of transformers; it sleeps."""
    assert rollout.max_model_tokens is not None, "a run is resolved before it is started"
    from transformers import AutoModelForCausalLM

    from ppojob_trainer.models.families import FAMILIES
    from ppojob_trainer.models.load import quiet_loading
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
        # PyTorch's own kernels support no attention sinks, and transformers refuses such models.
        "attn_implementation": "eager" if FAMILIES[config.model_type].has_sinks else "sdpa",
        "trust_remote_code": False,
    }
    with quiet_loading():
        # Only `load_model` reads files of quantised weights.
        if read_weights(model_folder).form is not None:
            model = AutoModelForCausalLM.from_config(**options).eval()
        else:
            model = AutoModelForCausalLM.from_pretrained(model_folder, **options)
    unify_modules(model)
    if lora is not None:
        add_adapters(model, lora)
    attach_tower(model, model_folder, DTYPES[rollout.dtype], torch.device(device))
    engine = HuggingFaceEngine(
        model.to(device),
        max_model_tokens=rollout.max_model_tokens,
        max_sequences=rollout.max_sequences,
        tells_experts=tells_experts,
    )
    engine.sleep()
    return engine
