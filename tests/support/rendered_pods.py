"""The objects that the operator makes for a job, for tests of what is in them."""

from typing import Any

from operator_jobs import make_job

from ppojob_operator.build.objects import bindings, key_templates, stateful_sets, surroundings
from ppojob_operator.build.pod_template import Defaults
from ppojob_operator.situation import pod_config
from ppojob_operator.state import Job

DEFAULTS = Defaults("trainer:1", "IfNotPresent", "nvidia.com/gpu")


def rendered(job: Job) -> list[dict[str, Any]]:
    assert job.manifest is not None, job.problems
    config = pod_config(job, job.manifest)
    keys = [dict(one) for one in key_templates(job, config).values()]
    roles = config.run.topology.with_own_pods
    sets = stateful_sets(job, config, roles, job.manifest.spec.pods, DEFAULTS)
    return [*surroundings(job, config), *bindings(job), *keys, *sets]


def pod_specs(*items: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod specs of a job with these settings, by role."""
    sets = [one for one in rendered(make_job(pods=list(items))) if one["kind"] == "StatefulSet"]
    return {
        one["metadata"]["labels"]["ppojob.dev/role"]: one["spec"]["template"]["spec"]
        for one in sets
    }
