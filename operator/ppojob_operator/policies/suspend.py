"""Which roles have pods now: all, all but the controller while it commits, or none. Pure.

A job that is to stop loses its controller first. Told to end, it ends its step and commits, and
for that it needs all other roles; they go when it is gone. Going on is starting anew: the
controller finds the commit.
"""

from ppojob_operator.role_pods import RolePods
from ppojob_operator.state import Observed


def wanted_roles(
    roles: tuple[RolePods, ...], observed: Observed, *, runs: bool, commits: bool
) -> tuple[RolePods, ...]:
    """The roles that are to have pods.

    Args:
        roles: those with pods of their own.
        observed: what is there.
        runs: whether the job is to run.
        commits: whether a controller that must stop has time to commit.
    """
    if runs:
        return tuple(role for role in roles if not _is_leaving(role, observed))
    if commits and _is_committing(observed):
        return tuple(role for role in roles if role.role != "controller")
    return ()


def _is_leaving(role: RolePods, observed: Observed) -> bool:
    """Whether pods of a StatefulSet that is gone are still on their way out.

    They have the names of those to come. A new StatefulSet would wait for them as well, but ask
    less and less often; pods that somebody has orphaned are no reason to wait, it adopts them.
    """
    pods = observed.pods_of(role.role)
    sets = {child.uid for (kind, _), child in observed.children.items() if kind == "StatefulSet"}
    return any(pod.owner_uid and pod.owner_uid not in sets for pod in pods)


def _is_committing(observed: Observed) -> bool:
    """Whether there is a controller that may still have something to commit."""
    report = observed.controller
    return any(
        not (report is not None and report.pod_uid == pod.uid and report.phase == "done")
        for pod in observed.pods_of("controller")
        if pod.is_ready or pod.is_deleting
    )
