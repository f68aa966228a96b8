import pytest
import torch
from family_models import FAMILY_MODELS
from tiny_models import TWO_LAYERS
from transformers import AutoModelForCausalLM, LlamaConfig

from ppojob_trainer.models.architectures import backbone_tensors, sizes_by
from ppojob_trainer.models.kinds import POLICY
from ppojob_trainer.models.memory import cached_per_token, cached_state_bytes
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.models.transformers_modules import unify_modules

SIZES = {**TWO_LAYERS, "hidden_size": 64, "num_hidden_layers": 3}


@pytest.mark.parametrize("family", FAMILY_MODELS)
def test_names_are_those_that_the_trainer_sends(family) -> None:
    kind, options = FAMILY_MODELS[family]
    for tied in (True, False):
        config = kind.config_class(**{**SIZES, **options, "tie_word_embeddings": tied})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        unify_modules(model)
        sizes = sizes_by(config.to_dict())
        names = dict((*backbone_tensors(sizes), *POLICY.head(sizes))).keys()
        assert names == {name for name, _ in named_full_tensors(model)}


def test_a_layer_has_states_or_keys_and_values() -> None:
    kind, options = FAMILY_MODELS["qwen3_5_text"]
    sizes = sizes_by(kind.config_class(**{**SIZES, **options}).to_dict())
    assert cached_per_token(sizes, 1) == 2 * 1 * 2 * 16  # two of three layers have states
    inputs, state = (2 * 2 * 6 + 4 * 10) * 3, 4 * 6 * 10
    assert cached_state_bytes(sizes, 2, 1) == 3 * (2 * inputs + 4 * state)
    without = sizes_by(LlamaConfig(**SIZES).to_dict())
    assert cached_per_token(without, 1) == 2 * 3 * 2 * 16
    assert cached_state_bytes(without, 2, 1) == 0
