"""NetworkPolicies and PodDisruptionBudget of a job. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from ppojob_api import contract
from ppojob_api.v1alpha1.agent import AgentSpec, EgressSpec
from ppojob_api.well_known import (
    LABEL_ROLE,
    LABEL_ROW_OF,
    ROLE_SLUGS,
    RoleName,
    row_account_name,
    workload_name,
)
from ppojob_operator.build.metadata import has_account, manifest, selector
from ppojob_operator.state import Job

ANSWERING_ROLES: Final[tuple[RoleName, ...]] = ("tools", "retriever", "judge")
"""Roles that only serve requests and open no connections to the job's pods."""

_OPEN_PORTS = (contract.PORT_HEALTH, contract.PORT_METRICS)
_DNS = [{"port": port, "protocol": name} for port in (53, 5353) for name in ("UDP", "TCP")]
"""Ports of DNS pods; on OpenShift they listen on 5353."""
_API_SERVER_PORTS = (443, 6443)
"""Ports of its Service and of its endpoints. It is no pod, so a NetworkPolicy cannot select it."""


def network_policies(
    job: Job, roles: Sequence[RoleName], agent: AgentSpec | None
) -> list[dict[str, Any]]:
    """Return the policies of a job: ingress to its pods, and egress of roles that only serve."""
    answering = [role for role in ANSWERING_ROLES if role in roles]
    named = {"tools": agent.egress if agent is not None else ()}
    callers = [role for role in answering if has_account(role, agent)]
    fenced: list[RoleName] = ["judge"] if "judge" in roles else []
    return [
        _ingress(job, answering, fenced),
        *(_ingress_of_judge(job) for _ in fenced),
        *(_egress(job, role, named.get(role, ()), role in callers) for role in answering),
        *(_nothing_of_rows(job) for _ in callers),
    ]


def _ingress(job: Job, answering: Sequence[RoleName], fenced: Sequence[RoleName]) -> dict[str, Any]:
    """Build the ingress policy: only the job's pods reach its ports; health and metrics are open.

    torch.distributed has no authentication, so this policy protects its ports, also from roles of
    the job that only serve requests.
    """
    peers = {"from": [{"podSelector": _all_but(job, answering)}]}
    spec = {
        "podSelector": _all_but(job, fenced),
        "policyTypes": ["Ingress"],
        "ingress": [peers, {"ports": _tcp(*_OPEN_PORTS)}],
    }
    return manifest("NetworkPolicy", job, f"{job.name}-pods", spec=spec)


def _all_but(job: Job, roles: Sequence[RoleName]) -> dict[str, Any]:
    """Return a selector of the job's pods without these roles."""
    found: dict[str, Any] = {"matchLabels": selector(job)}
    if roles:
        slugs = [ROLE_SLUGS[role] for role in roles]
        found["matchExpressions"] = [{"key": LABEL_ROLE, "operator": "NotIn", "values": slugs}]
    return found


def _ingress_of_judge(job: Job) -> dict[str, Any]:
    """Build the judge's ingress policy: only pods of the role reward reach it."""
    by_role = {
        role: [{"podSelector": {"matchLabels": selector(job, role)}}]
        for role in ("reward", "controller")
    }
    ports = _tcp(contract.PORT_SUPERVISOR, contract.PORT_FIRST_RANK)
    spec = {
        "podSelector": {"matchLabels": selector(job, "judge")},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": by_role["reward"], "ports": _tcp(contract.PORT_JUDGE)},
            {"from": by_role["controller"], "ports": ports},
            {"ports": _tcp(*_OPEN_PORTS)},
        ],
    }
    name = f"{workload_name(job.name, 'judge')}-pods"
    return manifest("NetworkPolicy", job, name, "judge", spec=spec)


def _tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _egress(
    job: Job, role: RoleName, egress: Sequence[EgressSpec], asks_api_server: bool
) -> dict[str, Any]:
    """Build the egress policy: the addresses in `agent.egress`, and DNS if there are any."""
    allowed = [*([{"ports": _DNS}] if egress else []), *map(_allowed, egress)]
    if asks_api_server:
        allowed.append({"ports": _tcp(*_API_SERVER_PORTS)})
    spec = {
        "podSelector": {"matchLabels": selector(job, role)},
        "policyTypes": ["Egress"],
        "egress": allowed,
    }
    return manifest("NetworkPolicy", job, workload_name(job.name, role), role, spec=spec)


def _nothing_of_rows(job: Job) -> dict[str, Any]:
    """Build the policy of the pods of rows: no ingress and no egress."""
    spec = {
        "podSelector": {"matchLabels": {LABEL_ROW_OF: job.name}},
        "policyTypes": ["Ingress", "Egress"],
    }
    return manifest("NetworkPolicy", job, row_account_name(job.name), "tools", spec=spec)


def _allowed(rule: EgressSpec) -> dict[str, Any]:
    """Convert a rule to an egress rule of a NetworkPolicy, where an absent field allows all."""
    allowed: dict[str, Any] = {}
    if rule.cidr is not None:
        allowed["to"] = [{"ipBlock": {"cidr": rule.cidr}}]
    if rule.ports:
        allowed["ports"] = _tcp(*rule.ports)
    return allowed


def disruption_budget(job: Job, *, is_partly_placed: bool) -> dict[str, Any]:
    """Build the disruption budget: a drain evicts one pod of the job at a time.

    A pod that is not ready may always be evicted: else a job that never starts would block node
    drains. A job with an unschedulable pod does not block them either: it cannot continue.
    """
    spec = {
        "maxUnavailable": "100%" if is_partly_placed else 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(job)},
    }
    return manifest("PodDisruptionBudget", job, f"{job.name}-pods", spec=spec)
