"""The resolved run configuration, which the operator renders and every pod reads.

Every default is written out, so two runs with equal digests did the same, and a later version with
other defaults cannot change the meaning of an old run. A dtype `auto` is kept while the processor
of the pods is unknown; the pods resolve it (`on_processor`).
"""

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from pydantic import PrivateAttr

from ppojob_api import remote_files, resolution, topology
from ppojob_api.topology import Topology
from ppojob_api.v1alpha1.job import Metadata, PPOJob, PPOJobSpec
from ppojob_api.v1alpha1.section import Section

# Sections that decide the weights; others may change when a run resumes.
TRAJECTORY_SECTIONS = (
    "seed",
    "model",
    "data",
    "algorithm",
    "optimizer",
    "training",
    "rollout",
    "agent",
    "reference",
    "critic",
    "rewards",
    "rewardModel",
    "judge",
    "roles",
)


LAYOUT: Final[Mapping[str, tuple[str, ...]]] = {
    "training": (
        "microBatchTokens",
        "logprobChunkTokens",
        "mlpTileTokens",
        "activationCheckpointing",
        "reshardAfterForward",
    ),
    "rollout": (
        "parallelism",
        "gpuMemoryShare",
        "kvCacheGib",
        "maxSequences",
        "maxBatchedTokens",
        "enforceEager",
        "drafts",
    ),
    "judge": ("gpuMemoryShare", "kvCacheGib"),
}
"""Layout fields of these sections; all of `roles` is layout too. A run may resume with another
layout, on a cluster after a suspension."""


class EngineFacts(Section):
    """Versions and hardware that decide the bits of a run; null if unknown (plan, operator)."""

    torch: str | None = None
    transformers: str | None = None
    vllm: str | None = None
    # Widest instruction set of the processor, by the names that Linux uses.
    instruction_set: str | None = None
    native_bfloat16: bool | None = None  # whether the processor multiplies bfloat16 natively


class RunConfig(Section):
    """One run, with every default written out."""

    name: str
    namespace: str
    uid: str  # uid of the job; a job that is deleted and created again has another
    spec: PPOJobSpec  # the spec with every default written out; itself a valid spec
    topology: Topology
    facts: EngineFacts = EngineFacts()
    _places: dict[str, str] = PrivateAttr(default_factory=dict)

    def located(self, places: Mapping[str, str]) -> "RunConfig":
        """The same run after its URLs were fetched: its `spec` has paths instead.

        `to_json`, `digest`, `trajectory_json` and `job` still have the URLs. `places` maps each URL
        to a different path.
        """
        run = self.model_copy(update={"spec": remote_files.with_paths(self.spec, places)})
        run._places = dict(places)
        return run

    @property
    def as_written(self) -> "RunConfig":
        """The run with its URLs."""
        if not self._places:
            return self
        return self.located({path: url for url, path in self._places.items()})

    def to_json(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, ASCII; equal configurations give equal bytes."""
        return _canonical(self.as_written.model_dump(mode="json"))

    def to_short_json(self) -> bytes:
        """Canonical JSON without defaults.

        So an older program, which knows fewer fields, can read what a newer one has written.
        """
        return _canonical(self.as_written.model_dump(mode="json", exclude_defaults=True))

    @classmethod
    def from_json(cls, data: bytes | str) -> "RunConfig":
        """Read what `to_json`, or `to_short_json`, wrote.

        Raises:
            ValueError: It is not a run configuration of this version.
        """
        return cls.model_validate_json(data, by_alias=True, by_name=False)

    def on_processor(self, *, native_bfloat16: bool) -> "RunConfig":
        """The same run with dtypes for processors with or without native bfloat16."""
        spec = resolution.with_number_types(self.spec, native_bfloat16=native_bfloat16)
        return self.model_copy(update={"spec": spec})

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, as 64 hex digits."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def trajectory_json(self) -> bytes:
        """Canonical JSON of what decides the weights, which a resumed run is compared with.

        `spec` must be equal. It has neither loggers, time limits and checkpoints, nor the length of
        the run, unless the learning rate depends on it. `layout` may differ (ranks, threads, how
        engines compute): then sums have another order, and numbers agree to rounding. Offloading
        changes no number and is left out.
        """
        spec = self.as_written.spec.model_dump(mode="json")
        parts: dict[str, Any] = {key: spec[key] for key in TRAJECTORY_SECTIONS}
        roles = parts.pop("roles").items()
        layout: dict[str, Any] = {
            section: {key: parts[section].pop(key) for key in keys}
            for section, keys in LAYOUT.items()
            if parts[section] is not None
        }
        del layout["training"]["reshardAfterForward"]  # the same bits
        layout["roles"] = {name: role and _without_offload(role) for name, role in roles}
        optimizers = (self.spec.optimizer, self.spec.critic and self.spec.critic.optimizer)
        if any(optimizer and optimizer.needs_length for optimizer in optimizers):
            parts["steps"] = {key: spec["steps"][key] for key in ("total", "epochs")}
        # Such a job does not train.
        without = {key for key in ("validateOnly", "generateOnly") if spec["steps"][key]}
        if without:
            parts["steps"] = parts.get("steps", {}) | dict.fromkeys(without, True)
        return _canonical({"layout": layout, "spec": parts})

    def job(self) -> PPOJob:
        """The manifest that resolves to this configuration; `job.yaml` of a run folder."""
        spec = self.as_written.spec
        metadata = Metadata(name=self.name, namespace=self.namespace, uid=self.uid)
        return PPOJob(
            api_version="ppojob.dev/v1alpha1", kind="PPOJob", metadata=metadata, spec=spec
        )


def resolve(job: PPOJob, *, facts: EngineFacts | None = None) -> RunConfig:
    """Write out every default of a valid job.

    Args:
        job: A valid job.
        facts: Versions and hardware, if known.

    Returns:
        The run configuration. Resolving its `job()` again gives the same spec. A job without uid
        gets one derived from its namespace and name. A dtype that depends on an unknown processor
        stays `auto`: the pods resolve it (`on_processor`).
    """
    metadata = job.metadata
    facts = facts or EngineFacts()
    spec = resolution.with_number_types(
        resolution.resolved_spec(job.spec), native_bfloat16=facts.native_bfloat16
    )
    return RunConfig(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid or _uid(metadata),
        spec=spec,
        topology=topology.build(metadata.name, spec),
        facts=facts,
    )


def layout_json(spec: PPOJobSpec) -> bytes:
    """Canonical JSON of the layout of a spec without defaults, so new fields do not change it."""
    given = spec.model_dump(mode="json", exclude_defaults=True)
    layout = {
        section: {key: one for key, one in given.get(section, {}).items() if key in keys}
        for section, keys in LAYOUT.items()
    }
    return _canonical({**layout, "roles": given.get("roles", {})})


def _without_offload(role: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in role.items() if name != "offload"}


def _canonical(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _uid(metadata: Metadata) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"ppojob.dev/{metadata.namespace}/{metadata.name}"))
