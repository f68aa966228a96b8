import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rollout.checkpoint_names import checkpoint_names, key_value_bytes_per_token

STORED = ["model.embed_tokens.weight", "lm_head.weight", "model.layers.0.rotary_emb.inv_freq"]


def config(*, tied: bool) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_names_are_those_that_new_weights_must_have(
    tmp_path: Path, tied: bool, sharded: bool
) -> None:
    if sharded:
        index = {"weight_map": dict.fromkeys(STORED, "model-00001-of-00001.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file({name: torch.zeros(1) for name in STORED}, tmp_path / "model.safetensors")
    expected = {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    assert checkpoint_names(tmp_path, config(tied=tied)) == expected


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec\.model\.path: got .*it holds no weights"):
        checkpoint_names(tmp_path, config(tied=True))


def test_the_cache_of_a_token_counts_keys_and_values_of_every_layer() -> None:
    assert key_value_bytes_per_token(config(tied=True), torch.bfloat16) == 2 * 3 * 2 * 16 * 2
    assert key_value_bytes_per_token(config(tied=True), torch.float32) == 2 * 3 * 2 * 16 * 4
