"""Faults injected into the pods of a job, and the containers before and after them."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster_access import Cluster, eventually

SUPERVISOR = ["-m", "ppojob_trainer", "supervise"]
RANK = ["-m", "ppojob_trainer", "rank"]


@dataclass(frozen=True)
class Container:
    """What becomes another when a container, or its pod, is replaced."""

    pod: str
    container: str
    started: str


def containers(cluster: Cluster, selector: str) -> dict[str, Container]:
    """The containers that run, by the names of their pods."""
    listed = cluster.kubectl("get", "pods", f"--selector={selector}", "--output=json")
    found = {}
    for pod in json.loads(listed)["items"]:
        for one in pod["status"].get("containerStatuses", ()):
            if started := one["state"].get("running", {}).get("startedAt"):
                uid = pod["metadata"]["uid"]
                found[pod["metadata"]["name"]] = Container(uid, one["containerID"], started)
    return found


def of_job(cluster: Cluster, job: str) -> dict[str, Container]:
    """The containers of a job that run, by the names of their pods."""
    return containers(cluster, f"ppojob.dev/job={job}")


def process(pod: Container, argv: list[str]) -> int:
    """The one process of a pod that was called so."""
    (pid,) = processes(pod, argv)
    return pid


def processes(pod: Container, argv: list[str]) -> list[int]:
    """The processes of a pod that were called so."""
    found = _of_pod(pod.pod)
    return [number for number, words in found if words[1 : len(argv) + 1] == argv]


def _of_pod(uid: str) -> list[tuple[int, list[str]]]:
    """The processes of a pod with their arguments, by their control group."""
    found = []
    for number, argv in _running():
        try:
            group = Path("/proc", str(number), "cgroup").read_text()
        except OSError:  # it ended between the two looks
            continue
        if f"pod{uid}" in group:
            found.append((number, argv))
    return found


def _running() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it ended between the two looks
                continue
            yield int(folder.name), words


def evict(cluster: Cluster, pod: str) -> None:
    """As a drain does: again and again, until the disruption budget allows it."""
    place = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction"
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    with tempfile.NamedTemporaryFile("w") as file:
        json.dump(asked, file)
        file.flush()
        command = ("create", f"--raw={place}", f"--filename={file.name}")
        eventually(lambda: '"Success"' in cluster.outcome(*command), 300)


def inject_fault(cluster: Cluster, how: str, job: str, role: str) -> dict[str, Container]:
    """Hit a pod, and wait until what was hit is there anew; answers who was there before.

    Args:
        cluster: where.
        how: "kill rank", "kill container", "evict" or "delete pod".
        job: whose pod.
        role: of the pod, as its name has it.
    """
    before, name = of_job(cluster, job), f"{job}-{role}-0"
    hit = before[name]
    if how == "kill rank":
        pid = process(hit, RANK)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: bool(set(processes(hit, RANK)) - {pid}), 300)
        return before
    if how == "evict":
        evict(cluster, name)
    elif how == "delete pod":
        cluster.kubectl("delete", "pod", name, "--wait=false")
    else:
        os.kill(process(hit, SUPERVISOR), signal.SIGKILL)
    eventually(lambda: of_job(cluster, job).get(name, hit) != hit, 300)
    return before
