"""Adaptations of transformers' modules: common names, and a parameter for each weight in files."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter
from transformers.models.llama4.modeling_llama4 import Llama4Router, Llama4TextMoe
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.pytorch_utils import Conv1D

from ppojob_trainer.models.architectures import EMBEDDING, HEAD
from ppojob_trainer.models.experts import Experts, StackedExperts, mixture_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import BIAS_MODULE, Family, MixtureOfExperts
from ppojob_trainer.models.routes import experts_per_token, follow_routes, mix_sparsely


class TransposedLinear(nn.Linear):
    """A linear layer with a weight (in, out), as in GPT-2's files (transformers' Conv1D)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """(..., in) -> (..., out)."""
        return functional.linear(input, self.weight.mT, self.bias)


class Gemma4Router(Gemma4TextRouter):  # type: ignore[misc]
    """Gemma 4's router; transformers' own returns the softmax in place of logits."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (t, E), weights (t, k) and experts (t, k) of tokens."""
        scaled = self.norm(hidden_states) * self.scale * self.scalar_root_size
        logits: Tensor = self.proj(scaled)
        probabilities = functional.softmax(logits, dim=-1, dtype=logits.float().dtype)
        weights, chosen = probabilities.topk(self.config.top_k_experts, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights * self.per_expert_scale[chosen], chosen


class Llama4TopRouter(Llama4Router):  # type: ignore[misc]
    """Llama 4's router; transformers' own returns the weights of all experts, most of them 0."""

    norm_topk_prob = False

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (t, E), weights (t, 1) and experts (t, 1) of tokens."""
        logits = functional.linear(hidden_states, self.weight)
        top, chosen = logits.topk(self.top_k, dim=-1)
        return logits, top.float().sigmoid().to(top.dtype), chosen


class Llama4Mixture(Llama4TextMoe):  # type: ignore[misc]
    """Llama 4's MoE block; transformers' own computes every expert for every token."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., h) -> (..., h)."""
        states = hidden_states.flatten(0, -2)
        _, weights, chosen = self.router(states)
        output: Tensor = self.shared_expert(states) + self.experts(states, chosen, weights)
        return output.view_as(hidden_states)


class PhimoeRouter(PhimoeTopKRouter):  # type: ignore[misc]
    """Phi-3.5-MoE's router; transformers' own draws experts in training mode."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (t, E), weights (t, 2) and experts (t, 2) of tokens."""
        logits = functional.linear(hidden_states, self.weight, self.bias)
        return logits, *mix_sparsely(logits, self.router_jitter_noise)


class _Float32Router(nn.Module):
    """Mixin of a router that computes in float32 under autocast too, as engines do."""

    def forward(self, states: Tensor, *args: Any) -> Any:
        weight = next(self.parameters())
        states = states.to(torch.promote_types(states.dtype, weight.dtype))  # not all do it
        with torch.autocast(states.device.type, enabled=False):
            return super().forward(states, *args)


def per_layer_inputs(model: Any, ids: Tensor, places: Tensor | None = None) -> dict[str, Tensor]:
    """Return the argument `per_layer_inputs` of a decoder called with embeddings, if it has any.

    That is Gemma 4 E2B and E4B. `ids` are (b, t) int64; `places` (n,) int64 are the image tokens
    among the b * t, which get the per-layer embedding of padding.
    """
    if not getattr(model.config, "hidden_size_per_layer_input", 0):
        return {}
    if places is not None:
        padding = model.config.pad_token_id
        ids = ids.flatten().index_fill(0, places, padding).view_as(ids)
    return {"per_layer_inputs": model.base_model.get_per_layer_inputs(ids, None)}


def recurrent_layers(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Return the recurrent layers of a model or a stage, and their mixers."""
    base: Any = getattr(model, "base_model", model)
    recurrence = FAMILIES[base.config.model_type].recurrence
    if recurrence is None:
        return
    for layer in base.layers:
        mixer: nn.Module | None = getattr(layer, recurrence.mixer, None)
        # In other layers the same name may be attention or a feed-forward block.
        if mixer is not None and any(isinstance(one, nn.Conv1d) for one in mixer.children()):
            yield layer, mixer


def unify_modules(model: PreTrainedModel) -> None:
    """Convert an unsharded transformers model to this project's form.

    It may be on the meta device. Its modules get the common names, GPT-2's matrices become linear
    layers, and untrained values from files become parameters that are loaded and sharded as weights
    are. MoE layers get unstacked experts, and support router replay.
    """
    family = FAMILIES[model.config.model_type]
    rename_modules(model, family)
    for layer in model.modules():
        if isinstance(layer, Conv1D):
            layer.in_features, layer.out_features = layer.nx, layer.nf
            layer.__class__ = TransposedLinear
    base: Any = model.base_model
    _OWN_STEPS.get(model.config.model_type, lambda _: None)(base)
    for name, layer in product(family.frozen_scalars, base.layers):
        owner, _, own = name.rpartition(".")
        _make_parameter(layer.get_submodule(owner), own)
    if (mixture := mixture_of(model)) is None:
        return
    for number, layer in enumerate(base.layers):
        block = layer
        if mixture.block:
            block = getattr(layer, "mlp", None) or getattr(layer, mixture.block)
        if mixture.has_scales:
            layer.router.__class__ = Gemma4Router
        router = getattr(block, mixture.router, None)
        follow_routes(layer, router, mixture, number, experts_per_token(model.config))
        if hasattr(block, "experts"):
            _unify_experts(layer, block, mixture)


def rename_modules(model: PreTrainedModel, family: Family) -> None:
    """Rename the modules of a model, and those around its layers, to the common names."""
    base: Any = model.base_model
    if (inner := base._modules.get(family.inner_module)) is not None:
        _add_properties(inner, {family.inner_module: lambda own: own})
        setattr(model, model.base_model_prefix, inner)
        base = inner
    _rename(base, family.modules)
    if base is not model:
        _rename(model, family.whole_modules)
    if model.all_tied_weights_keys:
        model.all_tied_weights_keys = {HEAD: EMBEDDING}


def _rename(owner: nn.Module, names: Mapping[str, str]) -> None:
    """Rename modules to the names on the right; the owner's code finds them under both."""
    held = owner._modules
    theirs = {name: own for name, own in names.items() if name in held}
    if theirs:
        owner._modules = {theirs.get(name, name): module for name, module in held.items()}
        _add_properties(owner, {name: attrgetter(own) for name, own in theirs.items()})


def _add_properties(owner: nn.Module, getters: Mapping[str, Callable[[Any], object]]) -> None:
    """Add properties to a single module, by a class of its own."""
    kind = type(owner)
    own = {name: property(get) for name, get in getters.items()}
    owner.__class__ = type(kind.__name__, (kind,), own)


def _unify_experts(layer: Any, block: Any, mixture: MixtureOfExperts) -> None:
    """Unstack the experts of an MoE block, and rename transformers' `mlp` to its name in files."""
    stacked = block.experts
    block.experts = (
        StackedExperts(stacked, mixture)
        if mixture.is_stacked
        else Experts(stacked, mixture.matrices)
    )
    if mixture.selection_bias:
        _unify_router(block, mixture)
    if block is getattr(layer, "mlp", None) and mixture.block != "mlp":
        del layer.mlp
        setattr(layer, mixture.block, block)
        layer.__dict__["mlp"] = block  # an attribute of the layer, but not one of its modules


def _remove_step_limits(base: Any) -> None:
    """Remove the clamp of Mamba's time steps.

    transformers clamps steps to at least `time_step_min` in prefill, but not in decoding. The
    weights were trained without a clamp, and vLLM has none.
    """
    for layer in base.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))


def _unify_llama4(base: Any) -> None:
    """Give the layers of Llama 4 usual MoE blocks, chunks, and temperatures by positions."""
    for layer, kind in zip(base.layers, base.config.layer_types, strict=True):
        attention, is_chunked = layer.self_attn, kind == "chunked_attention"
        attention.attention_chunk = base.config.attention_chunk_size if is_chunked else None
        if layer.is_moe_layer:
            layer.is_moe_layer = False  # whose block returns the router's logits too
            layer.feed_forward.__class__ = Llama4Mixture
            layer.feed_forward.router.__class__ = Llama4TopRouter
        if attention.attn_temperature_tuning and not attention.use_rope:
            _scale_queries(layer)


def _scale_queries(layer: Any) -> None:
    """Scale the queries of a layer without RoPE by their positions (arXiv:2501.19399).

    transformers' code takes the indices of a batch for positions: wrong for packed and padded rows.
    """
    attention, of_call = layer.self_attn, list[Tensor]()
    attention.attn_temperature_tuning = False

    def keep_positions(_layer: nn.Module, _args: Any, options: dict[str, Any]) -> None:
        of_call[:] = [options["position_ids"]]

    def scale(_layer: nn.Module, _args: Any, queries: Tensor) -> Tensor:
        steps = ((of_call[0] + 1) / attention.floor_scale).floor()
        factors = 1.0 + attention.attn_scale * steps.log1p()
        scaled: Tensor = (queries * factors[..., None]).to(queries.dtype)
        return scaled

    layer.register_forward_pre_hook(keep_positions, with_kwargs=True)
    attention.q_proj.register_forward_hook(scale)


def _use_sparse_mixers(base: Any) -> None:
    """Draw no random numbers in the routers of Phi-3.5-MoE, nor for their inputs."""
    for layer in base.layers:
        layer.mlp.input_jitter_noise = 0.0
        layer.mlp.router.__class__ = PhimoeRouter


def _make_parameter(module: nn.Module, name: str, dtype: torch.dtype | None = None) -> None:
    """Turn a buffer that files hold into a parameter without gradient."""
    values = getattr(module, name).detach().to(dtype)
    delattr(module, name)
    shape = values.shape or (1,)  # FSDP2 cannot shard a 0-dimensional tensor
    setattr(module, name, nn.Parameter(values.reshape(shape), requires_grad=False))


def _unify_router(block: Any, mixture: MixtureOfExperts) -> None:
    """Turn a router's selection bias into an untrained parameter, and compute it in float32."""
    router = getattr(block, mixture.router)
    if bias_module := getattr(router, BIAS_MODULE, None):  # in files it belongs to the block
        delattr(router, BIAS_MODULE)
        setattr(block, BIAS_MODULE, bias_module)
        router.__dict__[BIAS_MODULE] = bias_module
    owner, _, own = mixture.selection_bias.rpartition(".")
    _make_parameter(block.get_submodule(owner), own, torch.float32)
    kind = type(router)
    router.__class__ = type(f"Float32{kind.__name__}", (_Float32Router, kind), {})


_OWN_STEPS: Final[Mapping[str, Callable[[Any], None]]] = {
    "nemotron_h": _remove_step_limits,
    "llama4_text": _unify_llama4,
    "phimoe": _use_sparse_mixers,
}
"""What a family's base model needs besides, by its `model_type`."""
