"""The resolved run configuration: what the operator renders and what every pod reads.

Every default is written out, so two runs with equal digests did the same thing, and a later version
with other defaults cannot change the meaning of an old run. Types of numbers that are `auto` stay
auto where the processor of the pods is not known; the pods write them out (`on_processor`).
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

# Sections that decide the weights; what is missing may change between a run and its resumption.
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
"""Of these sections, what is layout, as all of `roles` is: a run may go on under another one. On a
cluster a job that is suspended takes one up with its next pods."""


class EngineFacts(Section):
    """What else decides the bits of a run; null where it is not known yet (plan, operator)."""

    torch: str | None = None
    """Version of torch."""

    transformers: str | None = None
    """Version of transformers."""

    vllm: str | None = None
    """Version of vLLM."""

    instruction_set: str | None = None
    """Widest instruction set of the processor, by the names that Linux uses."""

    native_bfloat16: bool | None = None
    """Whether the processor multiplies bfloat16 natively."""


class RunConfig(Section):
    """One run, with every default written out."""

    name: str
    """Name of the job."""

    namespace: str
    """Namespace of the job."""

    uid: str
    """Identity of this run: a job deleted and made again has another."""

    spec: PPOJobSpec
    """The spec with every default written out; itself a valid spec."""

    topology: Topology
    """Pods and ranks."""

    facts: EngineFacts = EngineFacts()
    """Versions and hardware."""

    _places: dict[str, str] = PrivateAttr(default_factory=dict)

    def located(self, places: Mapping[str, str]) -> "RunConfig":
        """The same run where URLs have been fetched: its `spec` has paths in their place.

        What the run is (`to_json`, `digest`, `trajectory_json`, `job`) stays as it was written.
        `places` has the path of each URL, another one for each.
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
        """The same without what is a default.

        So a program of before, which knows fewer fields, reads what a newer one has written, and
        a run keeps the defaults that it began with.
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
        """The same run where processors do, or do not, multiply bfloat16 natively."""
        spec = resolution.with_number_types(self.spec, native_bfloat16=native_bfloat16)
        return self.model_copy(update={"spec": spec})

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, as 64 hex digits."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def trajectory_json(self) -> bytes:
        """Canonical JSON of what decides the weights: what a resumed run is held against.

        It must agree in `spec`. Length of the run, loggers, time limits and checkpoints may change
        on the way; with a schedule that falls, or a share of it as warm-up, the length decides
        the learning rate, so there it counts. It may differ in `layout`, ranks, threads and how
        engines compute: the order of sums is another then, and numbers agree to rounding. Where
        weights lie between two uses changes nothing, and is left out.
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
        # The model that such a job begins with is all that it has.
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
        job: A job that `validation.check` found nothing in.
        facts: Versions and hardware, where the caller knows them.

    Returns:
        The run configuration. Resolving its `job()` again gives the same spec. A job without uid
        gets one derived from its namespace and name. Types of numbers that depend on a processor
        that is not known stay `auto`: the pods resolve them (`on_processor`).
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
    """Canonical JSON of the layout that a spec asks for, where it is no default.

    So a version that knows more fields says the same of the same job.
    """
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
