import pytest
import torch
from family_models import FAMILY_MODELS
from tiny_models import TWO_LAYERS
from transformers import AutoModelForCausalLM, LlamaConfig

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.models.transformers_modules import unify_modules
from ppojob_trainer.rollout.checkpoint_names import (
    checkpoint_names,
    key_value_bytes_per_token,
    state_bytes,
)

SIZES = {**TWO_LAYERS, "hidden_size": 64, "num_hidden_layers": 3}


@pytest.mark.parametrize("family", FAMILY_MODELS)
def test_names_are_those_that_the_trainer_sends(family) -> None:
    kind, options = FAMILY_MODELS[family]
    for tied in (True, False):
        config = kind.config_class(**{**SIZES, **options, "tie_word_embeddings": tied})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        unify_modules(model)
        assert checkpoint_names(config) == {name for name, _ in named_full_tensors(model)}


def test_a_config_without_a_size_is_named() -> None:
    with pytest.raises(ConfigError, match=r"config\.json:num_hidden_layers: got 0: "):
        checkpoint_names(LlamaConfig(**{**SIZES, "num_hidden_layers": 0}))


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_the_cache_of_a_token_counts_keys_and_values_of_every_layer(dtype, size) -> None:
    assert key_value_bytes_per_token(LlamaConfig(**SIZES), dtype) == 2 * 3 * 2 * 16 * size


def test_a_layer_has_states_or_keys_and_values() -> None:
    kind, options = FAMILY_MODELS["qwen3_5_text"]
    config = kind.config_class(**{**SIZES, **options})  # two of three layers have states
    assert key_value_bytes_per_token(config, torch.bfloat16) == 2 * 1 * 2 * 16 * 2
    inputs, state = (2 * 2 * 6 + 4 * 10) * 3, 4 * 6 * 10
    assert state_bytes(config, torch.bfloat16) == 3 * (2 * inputs + 4 * state)
    assert state_bytes(LlamaConfig(**SIZES), torch.bfloat16) == 0
