"""What the checks of a model's folder know, held against transformers and safetensors."""

import contextlib
import json
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from family_models import FAMILY_MODELS, MIXTURE_MODELS
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_jobs import edit
from safetensors.torch import load_file, save_file
from tiny_models import TWO_LAYERS, make_model, write_model

from ppojob_trainer.engine.linear_attention import padded_lengths
from ppojob_trainer.models.architectures import read_sizes
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.folder_checks import check_config, check_model_folder, context_tokens
from ppojob_trainer.models.kinds import CRITIC, POLICY, REWARD, ModelKind
from ppojob_trainer.models.mixtures import mixture_in, required_sizes
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.weight_files import BadHeader, read_header

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def maker(model_class, **options):
    return partial(make_model, model_class, **{**SIZES, **options})


ERNIE = FAMILY_MODELS["ernie4_5_moe"]
NO_DEFAULTS = (
    *("deepseek_v2", "dots1", "hunyuan_v1_dense", "granitemoehybrid", "granitemoeshared"),
    *("hunyuan_v1_moe", "lfm2_moe", "ministral", "helium", "phimoe", "bamba"),
)
"""Families whose defaults are no model beside other sizes."""
MODELS = {
    **{
        f"plain {family}": maker(kind, pad_token_id=0)
        for family, (kind, _) in FAMILY_MODELS.items()
        # Those of the last one are a large model.
        if family not in (*NO_DEFAULTS, "gemma4_text")
    },
    **{family: maker(kind, **options) for family, (kind, options) in FAMILY_MODELS.items()},
    "helium": maker(FAMILY_MODELS["helium"][0], head_dim=4),  # as wide as the hidden states
    "llama with wide heads": maker(transformers.LlamaForCausalLM, head_dim=8),
    "gemma 4 with experts": maker(
        MIXTURE_MODELS["gemma4_text"][0], **MIXTURE_MODELS["gemma4_text"][1]
    ),
    "ernie without shared experts": maker(ERNIE[0], **{**ERNIE[1], "moe_num_shared_experts": 0}),
}


def test_every_family_has_a_model() -> None:
    assert FAMILIES.keys() == FAMILY_MODELS.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes(family: str) -> None:
    kind, _ = FAMILY_MODELS[family]
    given = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 24, "num_hidden_layers": 1}
    given |= {"num_attention_heads": 8}
    whole = kind.config_class(**given).to_dict()
    short = {"model_type": family, **given}
    if mixture_in(whole):  # whose sizes nobody leaves out
        short |= {key: whole[key] for key in required_sizes(whole)}
    assert read_sizes(short, Path()) == read_sizes(whole, Path())
    for key, values in FAMILIES[family].supported.items():
        assert whole.get(key) in values


@pytest.mark.parametrize("family", ["gemma4_text", "gemma4_unified_text"])
def test_layers_that_differ_are_read_as_the_hub_and_transformers_write_them(family: str) -> None:
    kind, options = FAMILY_MODELS[family]
    of_hub = {"model_type": family, **TWO_LAYERS, "vocab_size": 50, **options}
    written = kind.config_class(**of_hub).to_dict()
    assert "per_layer_config" in written
    assert "global_head_dim" not in written
    assert read_sizes(of_hub, Path()) == read_sizes(written, Path())


@pytest.mark.parametrize("adjusts", [True, False])
def test_keys_of_liquid_are_those_of_others(*, adjusts: bool) -> None:
    of_hub = {
        **{"model_type": "lfm2", "vocab_size": 50, "hidden_size": 64, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "num_hidden_layers": 4, "full_attn_idxs": [1, 3]},
        **{"block_ff_dim": 100, "block_auto_adjust_ff_dim": adjusts, "block_multiple_of": 16},
        **{"block_ffn_dim_multiplier": 1.3, "tie_embedding": False},
    }
    model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**of_hub))
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    sizes = read_sizes(of_hub, Path())
    assert sizes == read_sizes(model.config.to_dict(), Path())
    assert {one[0] for name, one in shapes.items() if name.endswith(".w1.weight")} == {sizes.inner}
    assert (sizes.recurrence.layers, sizes.is_tied) == ({0, 2}, False)


@pytest.mark.parametrize(("letters", "refused"), [("M*-E", None), ("MX", '"X"')])
def test_layers_of_nemotron_are_letters(letters: str, refused: str | None, tmp_path: Path) -> None:
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": letters}
    found = {problem.got for problem in check_config(config, tmp_path / "config.json", POLICY)}
    assert found == ({refused} if refused else set())


HUB_GRANITE = {
    **{"model_type": "granitemoehybrid", "hidden_size": 64, "intermediate_size": 32},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97},
    **{"num_hidden_layers": 3, "shared_intermediate_size": 48, "hidden_act": "silu"},
    **{"position_embedding_type": "nope", "mamba_n_heads": 8, "mamba_d_head": 16},
    "time_step_limit": [0.0, float("inf")],
}


@pytest.mark.parametrize(
    ("layers", "experts", "states"),
    [
        (
            ["mamba", "attention", "mamba"],
            {"num_local_experts": 6, "num_experts_per_tok": 2},
            {0, 2},
        ),
        (["attention"] * 3, {"num_local_experts": 0, "num_experts_per_tok": 0}, None),
    ],
)
def test_granite_as_the_hub_has_it(layers, experts, states, tmp_path: Path) -> None:
    """With its words for layers, without positions, and dense with attention alone."""
    config = {**HUB_GRANITE, **experts, "layer_types": layers}
    model = transformers.GraniteMoeHybridForCausalLM(transformers.GraniteMoeHybridConfig(**config))
    write_model(tmp_path, model.to(torch.bfloat16))
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings) == ([], [])
    sizes = read_sizes(config, tmp_path / "config.json")
    assert (sizes.recurrence and set(sizes.recurrence.layers)) == states
    assert padded_lengths(model, [3, 70]) == ([64, 128] if states else [3, 70])


@pytest.mark.parametrize(
    ("name", "is_tied"), [("llama", True), ("qwen3_moe", True), *((name, False) for name in MODELS)]
)
def test_what_transformers_saves_is_what_is_expected(name, is_tied, tmp_path):
    model = MODELS[name](tie_word_embeddings=is_tied)
    write_model(tmp_path, model.to(torch.bfloat16))
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings) == ([], [])
    buffers = dict(model.named_buffers())
    kept = [model.get_buffer(name) for name in model.state_dict() if name in buffers]
    assert report.parameters == sum(p.numel() for p in [*model.parameters(), *kept])
    assert report.vocabulary == 50


CLASSIFIERS = {
    "tokens": maker(transformers.LlamaForTokenClassification),
    "texts": maker(transformers.LlamaForSequenceClassification),
}


def found(folder: Path, kind: ModelKind) -> list[str]:
    report = check_model_folder(folder, kind)
    return [str(problem) for problem in [*report.errors, *report.warnings]]


def test_a_critic_can_be_made_of_a_language_model_or_a_classifier(tmp_path):
    for number, make in enumerate([MODELS["llama"], MODELS["qwen2"], *CLASSIFIERS.values()]):
        make(num_labels=1).save_pretrained(tmp_path / str(number))
        assert found(tmp_path / str(number), CRITIC) == []


def test_a_reward_model_needs_its_head_and_a_critic_does_not(tmp_path):
    model = CLASSIFIERS["texts"](num_labels=1)
    weights = {name: weight for name, weight in model.state_dict().items() if name[:5] != "score"}
    model.save_pretrained(tmp_path, state_dict=weights)
    assert found(tmp_path, CRITIC) == []
    (problem,) = found(tmp_path, REWARD)
    assert problem.startswith(f"{tmp_path}: got no score.weight: ")


def test_shards_are_read_together(tmp_path):
    MODELS["llama"]().save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings) == ([], [])


@pytest.mark.parametrize("kind", [POLICY, CRITIC])
@pytest.mark.parametrize(
    ("section", "rope"),
    [
        ("rope_scaling", {"type": "dynamic", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "longrope", "rope_theta": 1e4}),
    ],
)
def test_angles_that_depend_on_the_longest_row_are_refused(section, rope, kind, tmp_path):
    MODELS["llama"]().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", {section: rope})
    (problem,) = found(tmp_path, kind)
    assert problem.startswith(f"{tmp_path}/config.json:{section}: ")
    assert problem.endswith("; a model with one of default, linear, yarn, llama3")


@pytest.mark.parametrize("name", ["default", "linear", "yarn", "llama3"])
def test_fixed_angles_are_not(name, tmp_path):
    MODELS["llama"]().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", {"rope_scaling": {"rope_type": name, "factor": 4.0}})
    assert found(tmp_path, POLICY) == []


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
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 32_768),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}, None),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 2048}, 2048),
        ({"rope_scaling": {"type": "su"}}, 4096),
    ],
)
def test_a_model_is_as_long_as_vllm_lets_it_be(rope, tokens):
    assert context_tokens({"max_position_embeddings": 32_768, **rope}) == tokens


def test_an_expert_that_is_not_there_is_named(tmp_path):
    MODELS["qwen3_moe"]().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lacking = "model.layers.1.mlp.experts.4.up_proj.weight"
    del weights[lacking]
    save_file(weights, tmp_path / "model.safetensors")
    (problem,) = check_model_folder(tmp_path).errors
    assert (problem.got, problem.reason_code) == (f"no {lacking}", ModelReason.TENSOR_MISSING)


def test_the_hub_has_another_name_for_the_number_of_experts(tmp_path):
    MODELS["qwen3_moe"]().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    written["num_experts"] = written.pop("num_local_experts")
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert found(tmp_path, POLICY) == []


@pytest.mark.parametrize(
    ("path", "is_id"),
    [("Qwen/Qwen3-0.6B", True), ("models/a/b", False), ("../a", False), ("/a/b", False)],
)
def test_an_id_of_the_hub_is_told_as_one(path, is_id):
    (problem,) = check_model_folder(Path(path)).errors
    assert problem.allowed.startswith(f"hf://{path},") == is_id


@pytest.mark.processes
def test_the_checks_load_no_torch():
    code = (
        "import sys, ppojob_trainer.models.folder_checks, ppojob_trainer.models.tokenizer_fit\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=60), has_length=st.booleans())
def test_any_bytes_are_judged(content, has_length, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "c"
    path.write_bytes(struct.pack("<Q", len(content)) + content if has_length else content)
    with contextlib.suppress(BadHeader):
        read_header(path)
