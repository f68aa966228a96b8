"""Which roles have pods now: all, all but the controller while it commits, or none. Pure.

A job that is to stop loses its controller first. Told to end, it ends its step and commits, and
for that it needs all other roles; they go when it is gone. Going on is starting anew: the
controller finds the commit.
"""

from ppojob_api.topology import RoleTopology
from ppojob_operator.state import Observed


def wanted_roles(
    roles: tuple[RoleTopology, ...], observed: Observed, *, runs: bool, commits: bool
) -> tuple[RoleTopology, ...]:
    """The roles that are to have pods.

    Args:
        roles: those with pods of their own.
        observed: what is there.
        runs: whether the job is to run.
        commits: whether a controller that must stop has time to commit.
    """
    if runs:
        # Pods of before must be gone: two controllers of one job must not meet.
        return () if is_leaving(observed) else roles
    if commits and _is_committing(observed):
        return tuple(role for role in roles if role.role != "controller")
    return ()


def is_leaving(observed: Observed) -> bool:
    """Whether the job was stopped and its pods are not all gone yet."""
    sets = [child for (kind, _), child in observed.children.items() if kind == "StatefulSet"]
    return bool(observed.pods) and all(child.is_deleting for child in sets)


def _is_committing(observed: Observed) -> bool:
    """Whether there is a controller that may still have something to commit."""
    report = observed.controller
    return any(
        not (report is not None and report.pod_uid == pod.uid and report.phase == "done")
        for pod in observed.pods_of("controller")
        if pod.is_ready or pod.is_deleting
    )
