"""Pods on nodes that do not answer: a StatefulSet would wait for them for ever. Pure."""

from ppojob_operator.state import DeletePod, Observed, Time


def lost_pods(
    observed: Observed, silence_seconds: float, now: Time
) -> tuple[tuple[DeletePod, ...], float | None]:
    """Pods to be deleted without waiting for their node, and seconds until the next one may be.

    Safe although the pod may still run: its role's next epoch refuses whatever it says, and only
    the epoch of the commit can write one.
    """
    deletions: list[DeletePod] = []
    waits: list[float] = []
    for pod in observed.pods:
        node = observed.nodes.get(pod.node)
        if node is None or node.silent_since is None:
            continue
        wait = silence_seconds - (now - node.silent_since).total_seconds()
        if wait > 0:
            waits.append(wait)
        else:
            deletions.append(DeletePod(pod.name, pod.uid, force=True))
    return tuple(deletions), min(waits, default=None)
