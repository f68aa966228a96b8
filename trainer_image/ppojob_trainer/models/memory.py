"""Memory estimates: the least that models need, before anything is loaded.

Counts weights, gradients, moments and the engine's own weights; activations, caches and libraries
come on top. So what is refused here could never have run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from math import prod
from pathlib import Path
from typing import Final

from ppojob_api import topology
from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.roles import TrainingParallelism
from ppojob_api.v1alpha1.rollout import JudgeSpec, RolloutSpec
from ppojob_api.well_known import RoleName
from ppojob_trainer.models.architectures import (
    HEAD,
    Sizes,
    count_adapters,
    count_log_partition,
    linear_layers,
    nf4_bytes,
    sizes_of,
)
from ppojob_trainer.models.config_files import AUDIO, TOWER
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.mtp_forms import is_mtp_weight, mtp_copies
from ppojob_trainer.models.weight_files import read_weights

MTP: Final = "mtp"
GIB: Final = 2**30
MEMORY_INFO: Final = Path("/proc/meminfo")
MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

ENGINE: Final = "rollout engine"
COPIES: Final = "copies for checkpoints"
"""Buffers that are written in the background; a GPU's rank has them in host memory."""

_WEIGHT_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""The least of what `auto`, whose plan may offload to host memory, may need."""


def count_parameters(config: RunConfig) -> dict[str, int]:
    """Count the weights of a run's models by their folders, of all readable files.

    Without the output layer: if tied it is the embedding, even if a file holds it again. A trained
    vision tower is under `TOWER`, a trained MTP layer under `MTP`; frozen ones are not counted.
    """
    spec = config.spec
    sections = (spec.reward_model, spec.judge)
    others = {model.path for model in sections if model and model.path}
    folders = {spec.model.path, *spec.reference_paths, *spec.critic_paths, *others}
    found = {folder: _count_of(folder) for folder in folders}
    sizes = {name: one.size for name, one in read_weights(Path(spec.model.path)).tensors.items()}
    if not spec.model.freeze_vision_tower:
        is_tower = {name: name.startswith(TOWER) and not name.startswith(AUDIO) for name in sizes}
        if tower := sum(size for name, size in sizes.items() if is_tower[name]):
            found[TOWER] = tower
    if spec.model.mtp is not None and (model := sizes_of(spec.model.path)) is not None:
        copies = mtp_copies(model.model_type, model.layers)
        names = {name for name in sizes if is_mtp_weight(name, model.layers)} - copies.keys()
        found[MTP] = sum(sizes[name] for name in names)
    return found


def _count_recurrent(folder: str) -> int:
    """Count the weights of recurrent layers, which tensor-parallel ranks replicate."""
    sizes = sizes_of(folder)
    if sizes is None or sizes.recurrence is None:
        return 0
    mixer = sizes.recurrence.kind.mixer
    mixers = tuple(f"layers.{layer}.{mixer}." for layer in sizes.recurrence.layers)
    tensors = read_weights(Path(folder)).tensors.items()
    return sum(one.size for name, one in tensors if any(mixer in name for mixer in mixers))


def _count_of(folder: str) -> int:
    sizes = sizes_of(folder)
    layers = None if sizes is None else sizes.layers

    def counts(name: str) -> bool:
        return name != HEAD and not name.startswith(TOWER) and not is_mtp_weight(name, layers)

    tensors = read_weights(Path(folder)).tensors.items()
    return sum(tensor.size for name, tensor in tensors if counts(name))


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that a rank needs at the least for a model or an engine."""

    whole: int  # all of them, host memory included
    active: int  # on the device while it computes
    idle: int  # on the device while another model computes
    saved: int = 0  # the part of `whole` that a checkpoint holds


_Shard = Callable[..., MemoryUse]
"""Function from dtype, parameters, offload and moments to a rank's memory of a model."""


def held_by_rank(
    config: RunConfig, role: RoleName, parameters: Mapping[str, int]
) -> dict[str, int]:
    """Return the bytes that one rank of a role needs at the least, by purpose; see `_held`."""
    return {name: held.whole for name, held in _held(config, role, parameters).items()}


def held_in_turns(
    config: RunConfig, role: RoleName, parameters: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return the device bytes of a rank of a role, by the model that computes and by purpose.

    Without offload all models stay on the device while another computes.
    """
    held = _held(config, role, parameters)
    # The models on the device while one computes.
    turns = {
        worker: {worker} for worker in held if not worker.endswith("adapters") and worker != COPIES
    }
    if "reward model" in turns:  # it scores while the engine is loaded
        turns["reward model"].add(ENGINE)
    algorithm = config.spec.algorithm
    if "policy" in turns and (algorithm.compares_vocabularies or algorithm.compares_answers):
        turns["policy"].add("reference")
    return {
        worker: {
            name: size
            for name, one in held.items()
            if (size := one.active if name in loaded else one.idle)
        }
        for worker, loaded in turns.items()
    }


def offloads(config: RunConfig, role: RoleName) -> bool:
    """Whether a role with its own pods offloads something to host memory."""
    roles = config.spec.roles
    offload = {
        name: set[str](one.offload) for name, one in topology.colocatable_roles(roles).items()
    }
    offload["actorRollout"] = set(roles.actor_rollout.offload)
    living = config.topology.living_in(role)
    copies = config.spec.checkpoint.background and bool(living & {"actorRollout", "critic"})
    return copies or any(offload.get(one, set()) & {"weights", "optimizer"} for one in living)


def _held(config: RunConfig, role: RoleName, parameters: Mapping[str, int]) -> dict[str, MemoryUse]:
    """Return the models of a rank of a role, and their copies waiting to be written."""
    spec = config.spec
    if role == "judge" and (judge := spec.judge) is not None:
        ranks = max(1, spec.roles.judge.gpus_per_replica)
        size = _served(judge, parameters.get(judge.path, 0), ranks)
        return {"judge": MemoryUse(size, size, size)} if size else {}
    held = _models(config, role, parameters)
    copies = sum(one.saved for one in held.values())
    if "reference" in held and spec.algorithm.kl.reference_refresh is not None:
        copies += held["reference"].whole
    if copies and spec.checkpoint.background:
        there = copies if config.topology.role(role).device == "cpu" else 0
        held[COPIES] = MemoryUse(copies, there, there)
    return held


def _models(
    config: RunConfig, role: RoleName, parameters: Mapping[str, int]
) -> dict[str, MemoryUse]:
    """Return the models and the engine of a rank; `parameters` are from `count_parameters`."""
    spec, living = config.spec, config.topology.living_in(role)
    generates = config.topology.generating.role == role and not spec.algorithm.given
    # With a separate device memory models can be offloaded, and a sleeping engine frees its.
    may_offload = config.topology.role(role).device != "cpu"
    engine: dict[str, MemoryUse] = {}
    if generates:
        count, ranks = parameters.get(spec.model.path, 0), spec.rollout.parallelism.tensor
        if size := _served(spec.rollout, count, ranks):
            engine[ENGINE] = MemoryUse(size, size, 0 if may_offload else size)
    pods = topology.model_pods(spec.roles).get(role)
    if pods is None:
        return engine
    layout = pods.parallelism
    shard = _shard_over(layout, spec, may_offload=may_offload)
    # Tensor-parallel ranks replicate some layers: count the model as that much larger.
    parameters = {
        name: count + (layout.tensor - 1) * _count_recurrent(name) if layout.tensor > 1 else count
        for name, count in parameters.items()
    }
    actor = spec.roles.actor_rollout
    found: dict[str, MemoryUse] = {}
    if "actorRollout" in living and spec.steps.trains:
        whole, moments = _moments(spec)
        count, adapters = _trained(spec, parameters)
        found["policy"] = shard(spec.model.dtype, count, actor.offload, whole)
        found["adapters"] = shard(*_adapters(adapters, actor.offload), moments)
    if "actorRollout" in living:
        found |= engine
    reference, is_own = spec.roles.reference, spec.is_own_reference and "actorRollout" in living
    if "reference" in living and reference and not is_own:
        dtype, base = spec.model.dtype, spec.lora_of_reference
        counts = [
            _count_as_stored(base, parameters.get(p, 0), p, dtype) for p in spec.reference_paths
        ]
        found["reference"] = _one_active(
            [shard(dtype, count, reference.offload) for count in counts]
        )
    if "critic" in living:
        found |= _critics(spec, parameters, shard)
    model, judge = spec.reward_model, spec.roles.reward_model
    if "rewardModel" in living and model is not None and judge is not None:
        count = parameters.get(model.path, 0)
        found["reward model"] = shard(model.dtype, count, judge.offload)
    return {name: held for name, held in found.items() if held.whole}


def _shard_over(layout: TrainingParallelism, spec: PPOJobSpec, *, may_offload: bool) -> _Shard:
    """Return the function for a model that is sharded over the ranks of a layout.

    Each replica (HSDP) has all shards. Pipeline stages have about equally many layers; the largest
    has at least this many weights.
    """
    shards = layout.data_shard
    assert shards is not None, "a resolved configuration says how many shards"
    ranks = shards * layout.sequence * layout.tensor * layout.pipeline

    def shard(
        dtype: str, count: int, offload: Collection[str], moments: float | None = None
    ) -> MemoryUse:
        size = _WEIGHT_BYTES[dtype] * count // ranks
        held = _model(size, offload if may_offload else (), moments)
        fsdp = shards * layout.sequence
        if spec.training.reshard_after_forward or fsdp == 1:
            return held
        # One layer, all-gathered; of its experts, which are most of it, this rank's share.
        return replace(held, active=held.active + fsdp * size // layout.expert)

    return shard


def _critics(
    spec: PPOJobSpec, parameters: Mapping[str, int], shard: _Shard
) -> dict[str, MemoryUse]:
    critic, role = spec.critic, spec.roles.critic
    if critic is None or role is None:
        return {}
    path, offload = critic.path or "", role.offload
    count, moments = parameters.get(path, 0), critic.optimizer.moments
    own = _count_as_stored(critic.lora, count, path, spec.model.dtype)
    whole = moments if critic.lora is None else None
    found = {"critic": shard(spec.model.dtype, own, offload, whole)}
    compares = spec.algorithm.estimator.critic == "process_reward"
    if compares and (critic.lora is None or len(spec.critic_paths) > 1):
        other = parameters.get(spec.critic_paths[-1], 0)
        found["critic's reference"] = shard(spec.model.dtype, other, offload)
    adapters = _adapters(count_adapters(critic.lora, path), offload)
    found["critic's adapters"] = shard(*adapters, moments)
    return found


def _served(engine: RolloutSpec | JudgeSpec, count: int, ranks: int) -> int:
    """Return a rank's bytes of an engine: weights and KV cache."""
    weights = _WEIGHT_BYTES[engine.dtype] * count // ranks
    return weights + int((engine.kv_cache_gib or 0) * GIB)


def smaller_models(spec: PPOJobSpec) -> str:
    """Say what to choose where models are too large."""
    lora, sizes = spec.model.lora, sizes_of(spec.model.path)
    has_it = lora is not None and lora.base_type is not None
    is_sharded = spec.roles.actor_rollout.parallelism.tensor > 1
    if has_it or is_sharded or (sizes is not None and not sizes.takes_nf4):
        return "a smaller model"
    return "a smaller model, model.lora with baseType: nf4 (frozen weights in four bits)"


def least_cache(folder: str, dtype: str, tokens: int, ranks: int) -> int:
    """Return the least KV cache bytes of a text, for each rank of its engine.

    Recurrent layers count nothing; 0 where some layers have a sliding window.
    """
    sizes = sizes_of(folder)
    if sizes is None or FAMILIES[sizes.model_type].has_windows:
        return 0
    return _WEIGHT_BYTES[dtype] * tokens * cached_per_token(sizes, ranks)


def cached_per_token(sizes: Sizes, ranks: int) -> int:
    """Return the numbers that a rank of an engine caches for a token: keys and values.

    Layers that reuse an earlier layer's have none. Tensor-parallel ranks share the heads, at least
    one each, but not the latents of MLA.
    """
    layers = [sizes.attention(n) for n in range(sizes.layers) if sizes.has_attention(n)]
    if sizes.mla is not None and not FAMILIES[sizes.model_type].caches_heads:
        return len(layers) * sizes.mla.cached
    own = [one for one in layers if one.has_keys]
    return sum(2 * max(1, one.key_heads // ranks) * one.head_size for one in own)


def cached_state_bytes(sizes: Sizes, number_bytes: int, ranks: int) -> int:
    """Return the bytes that a rank of an engine caches for a row's recurrent states.

    Attention layers count as well: their last block is as large as a state.
    """
    if (states := sizes.recurrence) is None:
        return 0
    inputs = states.channels * (states.taps - 1) * number_bytes
    layer = inputs + states.inner * states.key * _WEIGHT_BYTES["float32"]
    layers = len(states.layers) + sum(map(sizes.has_attention, range(sizes.layers)))
    return layers * layer // ranks


def _model(weights: int, offload: Collection[str], moments: float | None) -> MemoryUse:
    """Return the memory of a model of so many bytes, with gradients and moments if trained."""
    own, kept = (weights, 0) if moments is None else (2 * weights, int(moments * weights))
    staying = 0 if "optimizer" in offload else kept
    resting = 0 if "weights" in offload else own
    saved = 0 if moments is None else weights + kept
    return MemoryUse(own + kept, active=own + staying, idle=resting + staying, saved=saved)


def _one_active(models: Sequence[MemoryUse]) -> MemoryUse:
    """Combine several models, one of which computes while the others rest."""
    resting = sum(model.idle for model in models)
    return MemoryUse(
        sum(model.whole for model in models),
        active=max(resting - model.idle + model.active for model in models),
        idle=resting,
    )


def _trained(spec: PPOJobSpec, parameters: Mapping[str, int]) -> tuple[int, int]:
    """Count the elements of the policy, and of its trained part with log Z's network."""
    model = spec.model
    count = sum(parameters.get(one, 0) for one in (model.path, TOWER, MTP))
    log_z = count_log_partition(spec.algorithm.policy_loss.loss, model.path)
    if model.lora is None:
        return count + log_z, 0
    count = _count_as_stored(model.lora, count, model.path, model.dtype)
    return count, count_adapters(model.lora, model.path) + log_z


def _count_as_stored(lora: LoraSpec | None, count: int, folder: str, dtype: str) -> int:
    """Return the number of elements of `dtype` that take a folder's weights, in NF4 or not."""
    if not count or lora is None or lora.base_type is None or (sizes := sizes_of(folder)) is None:
        return count
    layers = range(sizes.layers)
    shapes = [shape for layer in layers for shape in linear_layers(sizes, layer).values()]
    return count - sum(map(prod, shapes)) + sum(starmap(nf4_bytes, shapes)) // _WEIGHT_BYTES[dtype]


def _moments(spec: PPOJobSpec) -> tuple[float | None, float]:
    """Return moments and EMA of the policy's weights (None: frozen), and of adapters."""
    moments, average = spec.optimizer.moments, float(spec.model.average_decay is not None)
    if spec.model.lora is not None:
        return None, moments + average
    return moments + average * 4 / _WEIGHT_BYTES[spec.model.dtype], moments + average


def _adapters(count: int, offload: Collection[str]) -> tuple[str, int, Collection[str]]:
    """Return dtype, count and offload of adapters: only their moments are offloaded."""
    return "float32", count, [one for one in offload if one != "weights"]


def machine_bytes() -> int | None:
    """Return the memory of this machine, or this container's limit; None if unknown."""
    found = []
    for path in (*MEMORY_LIMITS, MEMORY_INFO):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if path == MEMORY_INFO:
            found.append(1024 * int(words[words.index("MemTotal:") + 1]))
        elif words[0].isdecimal():  # `max` means unlimited
            found.append(int(words[0]))
    return min(found, default=None)


def in_gib(held: Mapping[str, int]) -> str:
    """Format sizes for people: `policy 1.50, reference 0.38`."""
    return ", ".join(f"{name} {size / GIB:.2f}" for name, size in held.items())
