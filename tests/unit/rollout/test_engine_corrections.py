import pytest
from family_models import FAMILY_MODELS
from transformers import PreTrainedConfig

from ppojob_trainer.rollout import engine_corrections


def config_of(family: str) -> PreTrainedConfig:
    kind, options = FAMILY_MODELS[family]
    return kind.config_class(**options)


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("deepseek_v3", {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}),
        ("deepseek_v2", {"topk_method": "greedy", "n_group": 1, "topk_group": 1}),
        ("minimax_m2", {"use_routing_bias": True, "scoring_func": "sigmoid"}),
        ("cohere2", {"sliding_window": 3}),
        ("youtu", {"model_type": "deepseek_v3", "architectures": None}),
        ("ministral3", {"llama_4_scaling": {"original_max_position_embeddings": 8, "beta": 0.3}}),
        ("mimo", {"architectures": None}),  # its folder has layers that Qwen2's class has not
    ],
)
def test_a_server_is_told_what_engines_are(family: str, told: dict[str, object]) -> None:
    served = engine_corrections.served(config_of(family))
    assert {name: getattr(served, name) for name in told} == told


def test_temperatures_of_llama4_do_not_depend_on_the_longest_row() -> None:
    told = engine_corrections.generation(config_of("llama4_text"))
    assert told == {"attn_temperature_tuning": True}
    assert engine_corrections.generation(config_of("qwen3")) == {}


def test_angles_of_hunyuan_are_of_a_longer_base() -> None:
    served = engine_corrections.served(config_of("hunyuan_v1_dense"))
    assert served.rope_parameters["rope_type"] == "default"
    assert served.rope_parameters["rope_theta"] == 1e4 * 50.0 ** (8 / 6)


@pytest.mark.parametrize(
    ("family", "is_misread"), [("deepseek_v3", True), ("lfm2", True), ("qwen3", False)]
)
def test_kernels_that_misread_a_model_are_not_used(family: str, *, is_misread: bool) -> None:
    operations = engine_corrections.operations(config_of(family))
    assert (operations is not None) == is_misread
    assert operations is None or {"-rms_norm", "-rotary_embedding"} < {*operations}
