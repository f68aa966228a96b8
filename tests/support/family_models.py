"""A tiny model of each family that can be trained, by `model_type`: its class and further options.

Sizes are those of whoever makes it. What a family can have and the defaults have not is on.
"""

from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

FAMILY_MODELS: dict[str, tuple[type[PreTrainedModel], dict[str, object]]] = {
    "llama": (LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3ForCausalLM, {"head_dim": 8, "attention_bias": True}),
}
