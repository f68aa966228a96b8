"""Conversion of LoRA settings of FSDP (PEFT), and of equivalent ones of Megatron."""

import re
from typing import Any, Final

from ppojob_api.problem import shown
from ppojob_cli.verl.draft import Draft, Verl, listed

_MODEL = "actor_rollout_ref.model"
_LINEAR_LAYERS: Final = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn"),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp"),
}
"""PEFT's all-linear of a language model, with the parts of a block that they are in."""
_STACKS: Final = ["experts.gate_up_proj", "experts.down_proj"]
"""PEFT's parameters of the experts of a layer, where they are of one tensor each way."""
_MERGED_ALONE: Final = re.compile(
    r"-A\d+(\.\d+)?B|moe|mixtral|gpt-oss|deepseek-v[23]|moonlight|minimax-m|glm-4\.[5-7]"
    r"|qwen3-next|qwen3\.5|lfm2|nemotron-h|nvidia-nemotron-(nano|3)|granite-4|gemma-?(3n|4)"
    r"|gpt-?2|stablelm",
    re.IGNORECASE,
)
"""What the names of models have whose adapters vLLM gets merged: of mixtures, of layers that
keep a state or differ, and of two classes that take none."""
_OWN: Final = "experts", "weightDecomposed"  # fields of adapters that vLLM gets merged too
_OF_MEGATRON: Final = {
    "linear_q": "q_proj",
    "linear_k": "k_proj",
    "linear_v": "v_proj",
    "linear_proj": "o_proj",
    "linear_fc1_gate": "gate_proj",
    "linear_fc1_up": "up_proj",
    "linear_fc2": "down_proj",
}
_FUSED: Final = {"linear_qkv": "q, k and v", "linear_fc1": "gate and up"}
"""Megatron's layers of several of ours; adapters of these have one A but for `canonical_lora`."""


def lora(verl: Verl, job: Draft) -> None:
    """Convert the adapters of the policy and of a critic; rank 0 means none."""
    for model in (_MODEL, "critic.model") if verl.has_critic else (_MODEL,):
        if verl[f"{model}.lora_rank"]:
            job.copy(f"{model}.lora_rank")
            job.copy(f"{model}.lora_alpha")
            _adapted_layers(verl, job, model)
            job.copy(f"{model}.lora_adapter_path")
        elif verl.is_on(path := f"{model}.lora_adapter_path"):
            job.leave_out("lora_rank and lora_alpha as its adapter_config.json has them", path)
            continue
        elif not verl[f"{model}.lora.rank"] or not _of_megatron(verl, job, f"{model}.lora"):
            continue
        if model == _MODEL:
            _of_engines(verl, job, f"{model}.lora.merge")


def _of_engines(verl: Verl, job: Draft, key: str) -> None:
    """Convert how engines get the adapters; always merged if vLLM supports only that."""
    is_merged = bool(verl[key])
    has_own = job.fields.keys() & {f"spec.model.lora.{one}" for one in _OWN}
    if has_own or _MERGED_ALONE.search(str(verl[f"{_MODEL}.path"] or "")):
        is_merged = is_merged or verl["actor_rollout_ref.rollout.name"] == "vllm"
    job.set("spec.rollout.adapters", "merged" if is_merged else "beside", key)
    if is_merged and not verl[key]:
        job.note("vLLM gets such adapters merged: beside is not in this version", key)


def _of_megatron(verl: Verl, job: Draft, group: str) -> bool:
    """Convert Megatron's adapters if they are equivalent; return whether they are."""
    kind, targets = verl[f"{group}.type"], verl[f"{group}.target_modules"]
    names = _names(targets)
    unlike = next((name for name in names if name not in _OF_MEGATRON), None)
    why = None
    if kind not in ("lora", "canonical_lora", "dora"):
        why = f"adapters of type: {kind}: not in this version"
    elif unlike in _FUSED and kind != "canonical_lora":
        why = f"one A for {_FUSED[unlike]} ({unlike}); with type: canonical_lora each has its own"
    elif unlike is not None:
        why = f"target_modules {shown(unlike)}; one of {', '.join(_OF_MEGATRON)}"
    if why is not None:
        job.leave_out(why, f"{group}.rank")
        return False
    job.write(kind == "dora", f"{group}.type")
    for name in ("rank", "alpha", "dropout"):
        job.copy(f"{group}.{name}")
    layers = [_OF_MEGATRON[name] for name in names]
    is_all = set(layers) == set(_LINEAR_LAYERS)
    job.write(None if is_all else layers, f"{group}.target_modules")
    if verl.is_on(other := f"{group}.exclude_modules"):
        job.leave_out("the other layers, in target_modules", other)
    for name in ("dropout_position", "lora_A_init_method"):
        job.copy(f"{group}.{name}")
    if verl[second := f"{group}.lora_B_init_method"] != "zero":
        job.leave_out("B is zero", second)
    return True


def _adapted_layers(verl: Verl, job: Draft, model: str) -> None:
    """Return the targets without those of `exclude_modules`: names, or a pattern of paths."""
    key, other = f"{model}.target_modules", f"{model}.exclude_modules"
    excluded = verl[other] or []
    names = list(_LINEAR_LAYERS) if verl[key] == "all-linear" else _names(verl[key])
    try:
        left = [name for name in names if not _is_excluded(name, excluded)]
    except (re.error, ValueError):
        job.leave_out("spec.model.lora.targetModules chooses for all blocks alike", other)
        left = names
    stacks = _stacks(verl, job, left) if model == _MODEL else []
    is_all = left == list(_LINEAR_LAYERS) and len(stacks) != 1
    targets = None if is_all else [*left, *stacks]
    job.write(targets, key, *((other,) if left != names else ()))


def _names(value: Any) -> list[str]:
    return list(map(str, listed(value)))


def _stacks(verl: Verl, job: Draft, layers: list[str]) -> list[str]:
    """Return the stacked expert weights that get adapters in addition to layers."""
    key = f"{_MODEL}.target_parameters"
    if not verl.is_on(key):
        return []
    named = {".".join(name.split(".")[-2:]) for name in _names(verl[key])}
    into, back = _STACKS
    if not named <= {into, back}:
        job.leave_out(f"adapters of {into} and {back}", key)
        return []
    if named == {into} and "down_proj" in layers:
        job.leave_out(f"down_proj of target_modules is that of experts too: name {back}", key)
        return []
    job.set("spec.model.lora.experts", True, key)
    return [one for one in _STACKS if one in named]


def _is_excluded(layer: str, excluded: Any) -> bool:
    """Return whether a layer is excluded in all blocks; a ValueError if only in some."""
    path = f"model.layers.{{}}.{_LINEAR_LAYERS.get(layer, '')}.{layer}"
    if not isinstance(excluded, str):
        return any(path.endswith(f".{name}") for name in _names(excluded))
    found = {re.fullmatch(excluded, path.format(block)) is not None for block in (0, 1, 10)}
    (is_excluded,) = found
    return is_excluded
