"""What keeps others away from the pods of a job: network policy and disruption budget. Pure."""

from typing import Any

from ppojob_api import contract
from ppojob_operator.build.metadata import manifest, selector
from ppojob_operator.state import Job

_OPEN_PORTS = (contract.PORT_HEALTH, contract.PORT_METRICS)


def network_policy(job: Job) -> dict[str, Any]:
    """Only pods of the job reach its ports; health and metrics are open, and hold no secret.

    torch.distributed authenticates nobody, so this is what fences its ports.
    """
    return manifest(
        "NetworkPolicy",
        job,
        f"{job.name}-pods",
        spec={
            "podSelector": {"matchLabels": selector(job)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": selector(job)}}]},
                {"ports": [{"port": port, "protocol": "TCP"} for port in _OPEN_PORTS]},
            ],
        },
    )


def disruption_budget(job: Job) -> dict[str, Any]:
    """Whoever drains nodes takes one pod of the job at a time, and waits until it is back."""
    return manifest(
        "PodDisruptionBudget",
        job,
        f"{job.name}-pods",
        spec={"maxUnavailable": 1, "selector": {"matchLabels": selector(job)}},
    )
