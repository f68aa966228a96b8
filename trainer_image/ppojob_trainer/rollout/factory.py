"""From the resource's rollout section to an engine; each kind's libraries load only if chosen."""

from pathlib import Path
from typing import Literal

import torch

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.rollout.no_engine import NoEngine
from ppojob_trainer.rollout.protocol import RolloutEngine

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_engine(
    rollout: RolloutSpec,
    model_folder: Path,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    trust_remote_code: bool = False,
    shares_device: bool = True,
) -> RolloutEngine:
    """Build the engine that `rollout` names; it sleeps until it is given weights.

    Call it after the role's torch world is up and before the training model is built: it is
    collective over that world.

    Args:
        rollout: `spec.rollout` of a resolved run.
        model_folder: A Hugging Face folder.
        device: Where to run.
        trust_remote_code: `spec.model.trustRemoteCode`.
        shares_device: Whether the training model will be there too.
    """
    if rollout.replay is not None:
        return NoEngine()
    max_model_tokens = rollout.max_model_tokens
    assert max_model_tokens is not None, "a run is resolved before it is started"
    if rollout.engine == "vllm":
        from ppojob_trainer.rollout.vllm_engine import VllmEngine, VllmSettings

        kv_cache_bytes = None
        if rollout.kv_cache_gib is not None:
            kv_cache_bytes = int(rollout.kv_cache_gib * 2**30)
        return VllmEngine(
            VllmSettings(
                model_folder=model_folder,
                dtype=DTYPES[rollout.dtype],
                device=device,
                max_model_tokens=max_model_tokens,
                max_sequences=rollout.max_sequences,
                kv_cache_bytes=kv_cache_bytes,
                trust_remote_code=trust_remote_code,
                shares_device=shares_device,
            )
        )
    from transformers import AutoModelForCausalLM

    from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine

    model = AutoModelForCausalLM.from_pretrained(
        model_folder,
        dtype=DTYPES[rollout.dtype],
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )
    engine = HuggingFaceEngine(
        model.to(device), max_model_tokens=max_model_tokens, max_sequences=rollout.max_sequences
    )
    engine.sleep()
    return engine
