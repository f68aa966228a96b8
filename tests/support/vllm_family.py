"""Write the largest difference of log-probabilities between vLLM and transformers for families.

Run: `python vllm_family.py FOLDER OUTPUT FAMILY... [--rank R --store FILE]`. It writes an object by
family: the difference, or what went wrong; of linear attention, which vLLM computes in bfloat16
alone here, the mean. A job overrides each key of config.json that it may (`overridden`). Rows are
longer than windows; weights reach the engine as the trainer sends them, and are not those of the
folder. One process has all engines: loading vLLM takes longer. With a rank it is one of two that
share each engine, and experts are dealt to them.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from pathlib import Path
from traceback import format_exc
from typing import Literal

import torch
from engine_phase import close_quickly
from family_models import FAMILY_MODELS, MIXTURE_MODELS, is_half_in_vllm
from overridden import other_values, overridden
from padded_reference import gradients, token_logprobs
from tiny_models import draw_corrections, make_model, write_model
from transformers import PreTrainedModel
from whole_models import save_whole

from ppojob_api.v1alpha1.model import LoraSpec, ModelSpec
from ppojob_api.v1alpha1.rollout import RolloutParallelism, RolloutSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.config_files import read_config
from ppojob_trainer.models.families import FAMILIES, MULTIMODAL
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import add_adapters
from ppojob_trainer.models.routes import of_bytes
from ppojob_trainer.models.state_dict import named_full_adapters, named_full_tensors
from ppojob_trainer.models.transformers_modules import rename_modules, unify_modules
from ppojob_trainer.rollout.protocol import Request, SamplingParams
from ppojob_trainer.rollout.vllm_engine import VllmEngine
from ppojob_trainer.rows.experience import Experience

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
WINDOW, ANSWER = 16, 40
HALF = 16  # of a head: vLLM on the CPU wants heads of 32
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + i / 8 for i in range(HALF)],
    "long_factor": [2.0 + i for i in range(HALF)],
}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
INTERLEAVED = {**SECTIONS, "mrope_interleaved": True, "mrope_section": [2, 3, 3]}
PARTLY_ROTATED = {**INTERLEAVED, "partial_rotary_factor": 0.5}
HALF_ROTATED = {**SECTIONS, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
STATES = {"head_dim": 2 * HALF, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
WIDE = {"head_dim": 2 * HALF}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
JOINT = {"global_head_dim": 4 * HALF, "num_key_value_heads": 2, "num_global_key_value_heads": 1}
BETWEEN = {**WIDE, "rope_parameters": {**SECTIONS, "mrope_interleaved": True}}
OPTIONS = {
    **dict.fromkeys(("afmoe", "cohere2_moe", "ernie4_5", "glm", "glm4", "helium"), WIDE),
    **dict.fromkeys(("hunyuan_v1_dense", "hy_v3", "jais2", "mellum", "ministral"), WIDE),
    **dict.fromkeys(("ministral3", "seed_oss", "solar_open"), WIDE),
    **{key: {**WIDE, "tie_word_embeddings": True} for key in ("gemma", "gemma2", "gemma3_text")},
    **{key: {**WIDE, "tie_word_embeddings": True} for key in ("glm4_moe", "vaultgemma")},
    **dict.fromkeys(("glm4_moe_lite", "youtu"), LATENT),
    **{key: {**LATENT, "rope_parameters": YARN} for key in ("deepseek_v2", "deepseek_v3")},
    **{key: {"rope_parameters": SECTIONS} for key in ("qwen2_vl", "qwen2_5_vl")},
    "qwen2_5_omni_thinker": {"rope_parameters": SECTIONS},
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe_thinker"), BETWEEN),
    **{key: {**WIDE, **JOINT} for key in ("gemma4_unified_text", "gemma4_text of 26B")},
    "gemma4_text": {**WIDE, "global_head_dim": 4 * HALF},
    "llama4_text": {**WIDE, "attention_chunk_size": 2 * WINDOW, "floor_scale": WINDOW},
    "qwen2_moe": {"decoder_sparse_step": 2},
    "cwm": {**WIDE, "bos_token_id": 1},
    "smollm3": {"sliding_window": WINDOW},
    "gpt_oss": {**WIDE, "num_key_value_heads": 2},
    "mistral": {"rope_parameters": LLAMA3},
    "minimax_m2": {**WIDE, "rotary_dim": HALF},
    "phi3": {"rope_parameters": ROPE, "original_max_position_embeddings": 128},
    "phimoe": {
        "rope_parameters": {
            **{**ROPE, "original_max_position_embeddings": 128},
            **{"short_mscale": 1.2, "long_mscale": 1.3},
        },
    },
    "granitemoehybrid": {"mamba_d_head": HALF, "mamba_d_state": HALF},
    "nemotron_h": {  # of experts without gates the CPU has none
        **WIDE,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "mamba_head_dim": HALF,
        "ssm_state_size": HALF,
    },
    "falcon_h1": {
        **{"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": HALF},
        "mamba_n_groups": 1,
    },
    "laguna": {**WIDE, "num_attention_heads_per_layer": [2, 4, 2]},
    "mistral4": {"qk_nope_head_dim": HALF, "qk_rope_head_dim": HALF},
    "minicpm3": {
        **{"qk_nope_head_dim": HALF, "qk_rope_head_dim": HALF},
        "rope_parameters": {
            **{**ROPE, "original_max_position_embeddings": 256},
            **{"short_factor": ROPE["short_factor"][: HALF // 2], "long_factor": [2.0] * 8},
            "factor": 1.0,
        },
    },
    "hunyuan_v1_moe": {**WIDE, "moe_intermediate_size": [64] * 2},
    "olmoe": {"tie_word_embeddings": True},
    "glm4v": {"rope_parameters": HALF_ROTATED},
    **{key: {**WIDE, "rope_parameters": HALF_ROTATED} for key in ("glm_ocr", "glm4v_moe")},
    **{key: {**STATES, "rope_parameters": PARTLY_ROTATED} for key in ("qwen3_5", "qwen3_5_moe")},
    "qwen3_5_moe_text": {**STATES, "rope_parameters": PARTLY_ROTATED},
    "qwen3_5_text": {**STATES, "rope_parameters": PARTLY_ROTATED, "tie_word_embeddings": True},
    "qwen3_next": STATES,
}

ERNIE = FAMILY_MODELS["ernie4_5_moe"]
MODELS = {
    **FAMILY_MODELS,
    "ernie4_5_moe of 300B": (ERNIE[0], {**ERNIE[1], "moe_num_shared_experts": 0}),
    "gemma4_text of 26B": MIXTURE_MODELS["gemma4_text"],
}

TOLD = ("gemma4_text of 26B",)
"""Mixtures whose engine tells the experts too, which are those of transformers."""
ADAPTED = ("phi3", "glm4", "glm4v", "opt", "gpt_neox", "phi")
"""Families with adapters beside the weights here: of matrices that are several in one, and of
layers that transformers has another name for."""

OF_TRANSFORMERS = (
    *("arcee", "cwm", "flex_olmo", "glm", "gpt_neox", "helium", "hunyuan_v1_dense"),
    *("hunyuan_v1_moe", "jais2", "mellum", "ministral", "nanochat", "olmo", "olmo2", "olmo3"),
    *("phi", "seed_oss", "smollm3"),
    *("starcoder2", "vaultgemma", "youtu"),
)
"""Families that vLLM makes of transformers' classes, by which a trainer computes beside it."""


def difference(family: str, folder: Path, device: Literal["cpu", "cuda"] = "cpu") -> float:
    return _compared(family, _saved(family, folder), folder, device)


def _compared(
    family: str,
    model: PreTrainedModel,
    folder: Path,
    device: Literal["cpu", "cuda"] = "cpu",
    layout: RolloutParallelism | None = None,
) -> float:
    is_half = is_half_in_vllm(model.config.model_type, device)
    dtype = "bfloat16" if is_half else "float32"
    rollout = RolloutSpec(engine="vllm", dtype=dtype, max_model_tokens=96, max_sequences=4)
    changes = {"kv_cache_gib": 0.25, "enforce_eager": True}
    changes["parallelism"] = layout or RolloutParallelism()
    rollout = rollout.model_copy(update=changes)
    lora = LoraSpec(rank=8, alpha=8) if family in ADAPTED else None
    tells = family in TOLD
    alone = _trained(folder) if family in OF_TRANSFORMERS else []
    values = other_values(read_config(folder / "config.json"))
    job = ModelSpec.model_validate({"path": str(folder), "configOverrides": values})
    model, overrides = overridden(model, values), config_changes(folder, job)
    beside = {"lora": lora, "records_experts": tells, "overrides": overrides}
    engine = VllmEngine(rollout, folder, device=device, **beside)
    if lora is not None:
        rename_modules(model, FAMILIES[model.config.model_type])
        add_adapters(model, lora)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    draw_corrections(model)
    sent = deepcopy(model)
    unify_modules(sent)
    tensors = named_full_tensors(sent, merges=False)
    engine.load_weights(1, chain(tensors, named_full_adapters(sent)))
    assert not alone or all(map(torch.equal, _trained(folder), alone))
    prompts = [tuple(torch.randint(3, 128, (length,)).tolist()) for length in (5, ANSWER)]
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=ANSWER)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), prompt, sampling, seed=number))
    differences = []
    model.set_attn_implementation("eager")
    while engine.has_work():
        for row in engine.step():
            prompt = prompts[int(row.request_id)]
            with torch.no_grad():
                ids = torch.tensor([[*prompt, *row.tokens]])
                with _chosen(model) as chosen:
                    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            if tells:
                told = of_bytes(row.experts, ids.numel() - 1, model.config).long()
                expected = torch.stack(chosen, 1)[:-1]
                assert torch.equal(told.sort().values, expected.sort().values)
            logprobs, _ = token_logprobs(logits, torch.tensor(row.tokens))
            differences.append((logprobs - torch.tensor(row.logprobs)).abs())
    engine.close()
    found = torch.cat(differences)
    return float(found.mean() if is_half else found.max())


def _trained(folder: Path) -> list[torch.Tensor]:
    """What the trainer computes of the model of a folder: log-probabilities and gradients."""
    model = load_model(folder).requires_grad_()
    use_packed_attention(model)
    responses = torch.arange(9, 9 + WINDOW)
    rows = Experience(
        prompts=[torch.arange(3, 3 + WINDOW)],
        row_groups=torch.zeros(2, dtype=torch.int64),
        response_tokens=responses,
        lengths=torch.tensor([5, len(responses) - 5]),
        mask=torch.ones_like(responses, dtype=torch.bool),
        rollout_logprobs=torch.zeros(len(responses)),
    )
    logprobs, *_ = packed_pass(model, PolicyHead(LogprobSettings()), rows).outputs
    return [logprobs, *gradients(model, logprobs.sum()).values()]


@contextmanager
def _chosen(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """The experts that the routers of Gemma choose in the block, layer by layer."""
    found: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda *called: found.append(called[2][-1]))
        for name, module in model.named_modules()
        if name.endswith(".router")
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _saved(family: str, folder: Path) -> PreTrainedModel:
    """A model that lies in the folder, of a family, or a part of a larger one."""
    if family in MULTIMODAL:
        is_tied = family in ("lfm2_vl", "aya_vision")  # which vLLM ties
        own: dict[str, object] = {"tie_word_embeddings": is_tied}
        if family.startswith("gemma"):
            own["sliding_window"] = WINDOW
        if family.startswith("gemma4"):
            own["global_head_dim"] = 4 * HALF
        save_whole(folder, family, **SIZES, head_dim=2 * HALF, **own)
        return load_model(folder).requires_grad_()
    kind, options = MODELS[family]
    changes = {**SIZES, **options, **OPTIONS.get(family, {})}
    if "sliding_window" in changes:
        changes["sliding_window"] = WINDOW
    model = make_model(kind, **changes)
    write_model(folder, model)
    return model


def _dealt(families: list[str], folder: Path, rank: int, store: Path) -> dict[str, float]:
    """The same on one of two ranks; a rank with a neighbour would leave the saving to the first."""
    own = folder / f"rank {rank}"
    models = {family: _saved(family, own / family) for family in families}
    dist = torch.distributed  # noqa: TID251  # the world of the role
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    layout = RolloutParallelism(tensor=2, expert=2)
    return {
        family: _compared(family, model, own / family, layout=layout)
        for family, model in models.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("families", nargs="+")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store", type=Path)
    asked = parser.parse_args()
    close_quickly()
    found: dict[str, float | str] = {}
    if asked.store is not None:
        found.update(_dealt(asked.families, asked.folder, asked.rank, asked.store))
    for family in [] if found else asked.families:
        try:
            found[family] = difference(family, asked.folder / family)
        except Exception:  # which the test of this family tells
            found[family] = format_exc()
    asked.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
