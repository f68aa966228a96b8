"""How much memory models take at the least, before anything is loaded.

Weights, gradients, moments and the engine's own weights are certain; activations, caches and the
memory of libraries come on top. So what is refused here could never have run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ppojob_api import topology
from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.training import LoraSpec, OptimizerSpec
from ppojob_api.well_known import RoleName
from ppojob_trainer.models.architectures import HEAD, count_adapters
from ppojob_trainer.models.weight_files import read_weights

GIB: Final = 2**30
MEMORY_INFO: Final = Path("/proc/meminfo")
MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

_WEIGHT_BYTES: Final = {"float32": 4, "bfloat16": 2, "auto": 2}
"""Of auto, which a plan may leave to the processors of the pods, the least that it may take."""
_ADAPTER_BYTES: Final = 4


def count_parameters(config: RunConfig) -> dict[str, int]:
    """Weights of the models of a run by their folders, of all files that can be read.

    Without the output layer: where it is tied it is the embedding, even if a file holds it again.
    """
    spec = config.spec
    others = spec.reference, spec.critic, spec.reward_model
    folders = {spec.model.path} | {model.path for model in others if model and model.path}
    return {
        folder: sum(
            tensor.size
            for name, tensor in read_weights(Path(folder)).tensors.items()
            if name != HEAD
        )
        for folder in folders
    }


def held_by_rank(
    config: RunConfig, role: RoleName, parameters: Mapping[str, int]
) -> dict[str, int]:
    """Bytes that one rank of a role needs at the least, by what they are for.

    Parameters are as `count_parameters` gives them; a role without pods of its own holds nothing.
    """
    spec, living = config.spec, config.topology.living_in(role)
    generates = config.topology.generating.role == role and not spec.algorithm.given
    engine = _engine(config, parameters) if generates else {}
    pods = topology.model_pods(spec.roles).get(role)
    if pods is None:
        return engine
    # Copies of a model are whole, so what counts is over how many ranks each of them is cut. Stages
    # of a pipeline have about equally many layers, and no fewer weights than this on the largest.
    shards = pods.parallelism.data_shard
    assert shards is not None, "a resolved configuration says how many shards"
    layout = pods.parallelism
    ranks = shards * layout.sequence * layout.tensor * layout.pipeline
    weight = _WEIGHT_BYTES[spec.model.dtype]
    policy = parameters.get(spec.model.path, 0)
    has_adapters = spec.model.lora is not None
    found: dict[str, int] = {}
    if "actorRollout" in living and spec.steps.trains:
        trained = _numbers(spec.optimizer)
        found["policy"] = weight * (1 if has_adapters else trained) * policy // ranks
        found["adapters"] = trained * _adapters(spec.model.lora, spec.model.path) // ranks
    if "actorRollout" in living:
        found |= engine
    # With adapters the policy is its own reference.
    is_base = has_adapters and spec.reference is None
    if "reference" in living and not (is_base and "actorRollout" in living):
        found["reference"] = weight * parameters.get(spec.reference_path, 0) // ranks
    if "critic" in living and spec.critic is not None:
        lora, path = spec.critic.lora, spec.critic.path or ""
        trained = _numbers(spec.critic.optimizer)
        found["critic"] = weight * (1 if lora else trained) * parameters.get(path, 0) // ranks
        found["critic's adapters"] = trained * _adapters(lora, path) // ranks
    model = spec.reward_model
    if "rewardModel" in living and model is not None:
        count = parameters.get(model.path, 0)
        found["reward model"] = _WEIGHT_BYTES[model.dtype] * count // ranks
    return {name: size for name, size in found.items() if size}


def _numbers(optimizer: OptimizerSpec) -> int:
    """What a trained weight is in its own type: itself, its gradient, and its moments."""
    return 2 + optimizer.moments


def _adapters(lora: LoraSpec | None, folder: str) -> int:
    return _ADAPTER_BYTES * count_adapters(lora, folder)


def _engine(config: RunConfig, parameters: Mapping[str, int]) -> dict[str, int]:
    rollout = config.spec.rollout
    policy = parameters.get(config.spec.model.path, 0)
    weights = _WEIGHT_BYTES[rollout.dtype] * policy // rollout.parallelism.tensor
    held = weights + int((rollout.kv_cache_gib or 0) * GIB)
    return {"rollout engine": held} if held else {}


def machine_bytes() -> int | None:
    """Memory of this machine, or what this container may use of it; None where it is not known."""
    found = []
    for path in (*MEMORY_LIMITS, MEMORY_INFO):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        if path == MEMORY_INFO:
            found.append(1024 * int(words[words.index("MemTotal:") + 1]))
        elif words[0].isdecimal():  # `max` is no limit
            found.append(int(words[0]))
    return min(found, default=None)


def in_gib(held: Mapping[str, int]) -> str:
    """Sizes for people: `policy 1.50, reference 0.38`."""
    return ", ".join(f"{name} {size / GIB:.2f}" for name, size in held.items())
