"""Operators that die and come again, and what they leave of the job `sum` in the end."""

import base64
import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq
from cluster_access import Cluster, eventually
from cluster_jobs import pods
from fault_proxy import FaultProxy, ProcessFault
from operator_replica import Operator

from ppojob_operator.kinds import CHILD_KINDS

_KINDS = ",".join(kind.plural for kind in CHILD_KINDS.values())
_GIVEN = frozenset({"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"})
PATIENCE_SECONDS = 600.0


class Restarter:
    """Starts a replica whenever it has ended; kills `most` of them, at their write `kill_at`."""

    def __init__(
        self,
        cluster: Cluster,
        proxy: FaultProxy,
        logs: Path,
        kill_at: tuple[int, bool] | None = None,
        most: int | None = None,
    ) -> None:
        self._place = Cluster(proxy.folder, cluster.namespace)
        self._proxy = proxy
        self._logs = logs
        self._kill_at = kill_at
        self._most = most
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.deaths = 0
        self.lives = 0

    def __enter__(self) -> "Restarter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ends.is_set():
            # One name for all lives: the Lease of the last one needs not run out first.
            self.lives += 1
            self._proxy.fail_process(None)
            operator = Operator(self._place, self._logs, "doomed")
            if self._kill_at is not None and self.deaths != self._most:
                at, behind = self._kill_at
                self._proxy.fail_process(ProcessFault(at, behind, operator.process.kill))
            while operator.process.poll() is None and not self._ends.wait(0.1):
                continue
            self.deaths += self._proxy.has_failed()
            if operator.process.poll() is None:
                operator.end()


@contextlib.contextmanager
def undisturbed(cluster: Cluster, logs: Path) -> Iterator[Operator]:
    operator = Operator(cluster, logs, "undisturbed")
    try:
        yield operator
    finally:
        operator.end()


def wait(cluster: Cluster, reason: str, number: int) -> None:
    """Wait until the job says why it is where it is, and has so many pods."""

    def is_there() -> bool:
        said = cluster.read("ppojob", "sum", "{.status.reason}")
        return len(pods(cluster, "sum")) == number and said == reason

    eventually(is_there, PATIENCE_SECONDS)


def gone(cluster: Cluster) -> None:
    cluster.kubectl("delete", "ppojob", "sum", "--cascade=foreground", "--timeout=300s")


def objects(cluster: Cluster) -> dict[str, Any]:
    """Everything of the job by kind and name, without what differs from one making to the next."""
    uid = cluster.read("ppojob", "sum", "{.metadata.uid}")
    listed = cluster.kubectl("get", _KINDS, "--selector=ppojob.dev/job=sum", "--output=json")
    found: dict[str, Any] = {}
    for item in json.loads(listed)["items"]:
        metadata = {key: one for key, one in item["metadata"].items() if key not in _GIVEN}
        kept = {key: one for key, one in item.items() if key not in {"status", "data"}}
        text = json.dumps({**kept, "metadata": metadata}, sort_keys=True).replace(uid, "UID")
        # The configuration holds the uid, so its digest is another one for each job.
        text = re.sub(r"-config-[0-9a-f]{10}", "-config-DIGEST", text)
        text = re.sub(r'"[0-9a-f]{64}"', '"DIGEST"', text)
        whole = json.loads(text)
        found[f"{whole['kind']} {whole['metadata']['name']}"] = whole
    return found


def mismatched_keys(cluster: Cluster) -> list[str]:
    """Roles whose secret key does not belong to the public key that the others were told."""
    listed = cluster.kubectl("get", "secrets", "--selector=ppojob.dev/job=sum", "-ojson")
    secrets = json.loads(listed)["items"]
    assert secrets
    wrong = []
    for secret in secrets:
        data = {key: base64.b64decode(text) for key, text in secret["data"].items()}
        mine = zmq.curve_public(data["role.key"]).decode()
        for other in secrets:
            told = json.loads(base64.b64decode(other["data"]["public.json"]))
            if mine not in told.values():
                wrong.append(f"{secret['metadata']['name']} for {other['metadata']['name']}")
    return wrong


def duplicate_events(cluster: Cluster) -> list[str]:
    """Events on the job that were written more than once; those of another of its name aside."""
    uid = cluster.read("ppojob", "sum", "{.metadata.uid}")
    selector = f"--field-selector=involvedObject.uid={uid}"
    listed = json.loads(cluster.kubectl("get", "events", selector, "--output=json"))["items"]
    told = Counter((one["reason"], one["message"]) for one in listed)
    return [f"{reason}: {message}" for (reason, message), number in told.items() if number > 1]
