"""The resolved run configuration as a ConfigMap that never changes. Pure."""

import hashlib
from dataclasses import dataclass
from typing import Any

from ppojob_api.run_config import RunConfig
from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST
from ppojob_operator.build.metadata import manifest
from ppojob_operator.build.pods import CONFIG_FILE
from ppojob_operator.state import Job

_DIGEST_LETTERS = 10


@dataclass(frozen=True, slots=True)
class PodConfig:
    """What the pods of a job run, with its canonical JSON and the SHA-256 of that."""

    run: RunConfig
    text: str
    digest: str

    @classmethod
    def of(cls, run: RunConfig) -> "PodConfig":
        """Write out a run configuration."""
        text = run.to_json()
        return cls(run, text.decode("ascii"), hashlib.sha256(text).hexdigest())


def config_map_name(job: Job, config: PodConfig) -> str:
    """`<job>-config-<digest>`: another configuration is another object."""
    return f"{job.name}-config-{config.digest[:_DIGEST_LETTERS]}"


def config_map(job: Job, config: PodConfig) -> dict[str, Any]:
    """The ConfigMap; immutable, so that what a pod has mounted is what it was started with."""
    rendered = manifest(
        "ConfigMap",
        job,
        config_map_name(job, config),
        immutable=True,
        data={CONFIG_FILE: config.text},
    )
    rendered["metadata"]["annotations"] = {ANNOTATION_CONFIG_DIGEST: config.digest}
    return rendered
