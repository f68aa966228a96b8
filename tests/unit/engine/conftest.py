"""Tiny models and rows for the engine's tests.

pytest's importlib mode puts no test folder on the import path, so `padded_reference`, which these
tests share, is registered here under its plain name.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ppojob_trainer.rows.experience import Experience

_spec = importlib.util.spec_from_file_location(
    "padded_reference", Path(__file__).with_name("padded_reference.py")
)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["padded_reference"] = _module
_spec.loader.exec_module(_module)

VOCAB = 97

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

MakeModel = Callable[..., PreTrainedModel]
MakeRows = Callable[..., Experience]


@pytest.fixture
def make_model() -> MakeModel:
    def make(
        family: str = "llama",
        *,
        tied: bool = True,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        **options: object,
    ) -> PreTrainedModel:
        config_class, model_class = FAMILIES[family]
        own = {"head_dim": 8} if family == "qwen3" else {}
        torch.manual_seed(seed)
        config = config_class(**{**SHAPE, **own, **options}, tie_word_embeddings=tied)
        return model_class(config).to(dtype)

    return make


@pytest.fixture
def make_rows() -> MakeRows:
    def make(
        groups: int = 3, samples: int = 3, *, longest: int = 9, seed: int = 1, old: bool = False
    ) -> Experience:
        generator = torch.Generator().manual_seed(seed)

        def draw(high: int, shape: tuple[int, ...], low: int = 0) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        lengths = draw(longest + 1, (groups * samples,), low=1)
        tokens = int(lengths.sum())
        noise = torch.randn(5, tokens, generator=generator)
        return Experience(
            prompts=[draw(VOCAB, (int(draw(8, (1,), low=1)),)) for _ in range(groups)],
            row_groups=torch.arange(groups).repeat_interleave(samples),
            response_tokens=draw(VOCAB, (tokens,)),
            lengths=lengths,
            mask=noise[0] < 1.0,
            rollout_logprobs=noise[1] - 4.0,
            old_logprobs=noise[2] - 4.0 if old else None,
            ref_logprobs=noise[3] - 4.0,
            advantages=noise[4],
        )

    return make
