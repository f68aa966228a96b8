"""GPUs that a node only says it has: enough to test who is scheduled, and who waits."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from cluster_access import Cluster


@contextmanager
def offered(cluster: Cluster, count: int, resource: str) -> Iterator[None]:
    """Let the cluster's first node offer devices until the end of the block.

    The kubelet keeps what it did not write and asks no device plugin for it, so pods that claim
    such a device really start (and find none).
    """
    first = "--output=jsonpath={.items[0].metadata.name}"
    node = cluster.kubectl("get", "nodes", first)
    _patch(cluster, node, "add", resource, str(count))
    try:
        yield
    finally:
        _patch(cluster, node, "remove", resource, None)


def _patch(cluster: Cluster, node: str, operation: str, resource: str, value: str | None) -> None:
    name = resource.replace("~", "~0").replace("/", "~1")
    change = [
        {"op": operation, "path": f"/status/{field}/{name}", "value": value}
        for field in ("capacity", "allocatable")
    ]
    arguments = ("--subresource=status", "--type=json", f"--patch={json.dumps(change)}")
    cluster.kubectl("patch", "node", node, *arguments)
