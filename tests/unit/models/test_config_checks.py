import pytest

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_checks import context_tokens

YARN = {"factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        ({}, 32_768),
        ({"rope_scaling": None}, 32_768),
        ({"rope_parameters": {"rope_theta": 1e6}}, 32_768),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 32_768),
        ({"rope_scaling": {"type": "yarn", **YARN}}, 32_768),
        ({"rope_parameters": {"rope_type": "yarn", **YARN}}, 32_768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32_768),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, None),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, None),
    ],
)
def test_a_model_is_as_long_as_vllm_lets_it_be(rope: dict[str, Json], tokens: int | None) -> None:
    assert context_tokens({"max_position_embeddings": 32_768, **rope}) == tokens
