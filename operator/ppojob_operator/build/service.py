"""The headless service of a role: names for its pods, ready or not. Pure."""

from typing import Any

from ppojob_api import contract
from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.build.metadata import manifest, selector
from ppojob_operator.state import Job


def service(job: Job, role: RoleName) -> dict[str, Any]:
    """The service that gives each pod of the role its host name.

    Pods find each other before any of them is ready, so addresses that are not ready are
    published as well.
    """
    return manifest(
        "Service",
        job,
        workload_name(job.name, role),
        role,
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(job, role),
            "ports": [{"name": "health", "port": contract.PORT_HEALTH, "protocol": "TCP"}],
        },
    )
