"""The resolved run configuration as a ConfigMap that never changes. Pure."""

from typing import Any

from ppojob_api.run_config import RunConfig
from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST
from ppojob_operator.build.metadata import manifest
from ppojob_operator.build.pods import CONFIG_FILE
from ppojob_operator.state import Job

_DIGEST_LETTERS = 10


def config_map_name(job: Job, config: RunConfig) -> str:
    """`<job>-config-<digest>`: another configuration is another object."""
    return f"{job.name}-config-{config.digest()[:_DIGEST_LETTERS]}"


def config_map(job: Job, config: RunConfig) -> dict[str, Any]:
    """The ConfigMap; immutable, so that what a pod has mounted is what it was started with."""
    rendered = manifest(
        "ConfigMap",
        job,
        config_map_name(job, config),
        immutable=True,
        data={CONFIG_FILE: config.to_json().decode("ascii")},
    )
    rendered["metadata"]["annotations"] = {ANNOTATION_CONFIG_DIGEST: config.digest()}
    return rendered
