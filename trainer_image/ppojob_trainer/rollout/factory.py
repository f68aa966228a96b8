"""From the resource's rollout section to an engine; each kind's libraries load only if chosen."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_api.v1alpha1.training import LoraSpec
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
    """In place of an engine, where this rank generates nothing.

    It takes no memory, and no weights: those of the trainer are never put together for it.
    """

    def __init__(self) -> None:
        self._version = 0

    @property
    def policy_version(self) -> int:
        """See `RolloutEngine`."""
        return self._version

    def submit(self, request: Request) -> None:
        """Refuse: nobody has rows for it.

        Raises:
            RolloutError: always.
        """
        raise RolloutError(f"request {request.request_id!r}: this job generates nothing")

    def step(self) -> list[Finished]:
        """Nothing runs."""
        return []

    def has_work(self) -> bool:
        """Nothing to do."""
        return False

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored, and all are unknown."""

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take the version alone; all ranks leave `tensors` as they are."""
        self._version = version

    def reset_cache(self) -> None:
        """There is none."""

    def counts(self) -> dict[str, int]:
        """It counts nothing."""
        return {}

    def sleep(self) -> None:
        """It always does."""

    def close(self) -> None:
        """Nothing is open."""


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
    config.json (`config_changes`). `lora` are adapters that the engine computes with beside its
    weights; None where these are all that it gets.
    It may be asked to tell which experts of a mixture tokens went to.
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
    """The engine over a model of transformers; it sleeps."""
    assert rollout.max_model_tokens is not None, "a run is resolved before it is started"
    from transformers import AutoModelForCausalLM

    from ppojob_trainer.models.experts import split_experts
    from ppojob_trainer.models.families import FAMILIES
    from ppojob_trainer.models.load import quiet_loading
    from ppojob_trainer.models.lora import add_adapters
    from ppojob_trainer.models.vision_language import language_config
    from ppojob_trainer.models.vision_tower import give_tower
    from ppojob_trainer.models.weight_files import read_weights
    from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine

    config = language_config(model_folder)
    options = {
        "config": change(config, overrides),
        "dtype": DTYPES[rollout.dtype],
        # PyTorch's own kernels know of no sinks, and transformers refuses them such models.
        "attn_implementation": "eager" if FAMILIES[config.model_type].has_sinks else "sdpa",
        "trust_remote_code": False,
    }
    with quiet_loading():
        # Files of quantised weights are for nobody but `load_model`.
        if read_weights(model_folder).form is not None:
            model = AutoModelForCausalLM.from_config(**options).eval()
        else:
            model = AutoModelForCausalLM.from_pretrained(model_folder, **options)
    split_experts(model)
    if lora is not None:
        add_adapters(model, lora)
    give_tower(model, model_folder, DTYPES[rollout.dtype], torch.device(device))
    engine = HuggingFaceEngine(
        model.to(device),
        max_model_tokens=rollout.max_model_tokens,
        max_sequences=rollout.max_sequences,
        tells_experts=tells_experts,
    )
    engine.sleep()
    return engine
