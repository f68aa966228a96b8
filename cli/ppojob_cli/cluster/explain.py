"""`kubectl ppojob explain NAME`: collects reasons why a job makes no progress."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

import click

from ppojob_api import contract
from ppojob_cli.cluster.connection import ClusterConnection
from ppojob_cli.cluster.findings import OperatorLease, Snapshot, WarningEvent, explanation
from ppojob_cli.cluster.jobs import as_job, find_manifest, pods_of
from ppojob_cli.cluster.options import on_cluster
from ppojob_operator.conditions import (
    event_time,
    from_rfc3339,
    has_ended,
    holds,
    rfc3339,
    sanitized,
)
from ppojob_operator.errors import MissingError, RefusedError, UnavailableError
from ppojob_operator.kinds import EVENT, LEASE, NODE, POD
from ppojob_operator.reading import read_report, unreachable_since
from ppojob_operator.state import ControllerReport, Job, Manifest, Pod, Time

T = TypeVar("T")

_CONCURRENT: Final = 32
_SUPERVISOR_SECONDS: Final = 5.0


@click.command()
@on_cluster
@click.option(
    "--operator-namespace",
    default="ppojob-system",
    metavar="NAMESPACE",
    help="Where the operator runs.",
)
@click.option(
    "--operator-name",
    default="ppojob-operator",
    metavar="NAME",
    help="Full name of its release, which its Lease has.",
)
def explain(
    connection: ClusterConnection, name: str, operator_namespace: str, operator_name: str
) -> None:
    """Show every reason why a job does not continue, and what to do.

    The most important reason comes first. It reads the job, its pods, their nodes, events,
    supervisors and the operator's Lease, and says what it had no permission to read.
    """
    manifest = find_manifest(connection, name)
    job, hidden = as_job(manifest), list[str]()

    def allowed(what: str, look: Callable[[], T], otherwise: T) -> T:
        """Read something; if access is denied, note that and return the default."""
        try:
            return look()
        except RefusedError as problem:
            hidden.append(f"{what}: {sanitized(str(problem))}")
            return otherwise

    pods = allowed("pods", lambda: tuple(pods_of(connection, job)), None)
    own = pods or ()
    lease = LEASE.path(operator_namespace, operator_name)
    snapshot = Snapshot(
        job=job,
        pods=pods,
        unreachable_nodes=allowed("nodes", lambda: _unreachable(connection, own), {}),
        warnings=allowed("events", lambda: tuple(_warnings(connection, job)), ()),
        lease=allowed("the operator's Lease", lambda: _lease(connection, lease), None),
        progressed=_progressed(manifest),
        reports=allowed("supervisors", lambda: _reports(connection, job, own), {}),
        now=connection.now,
        hidden=tuple(hidden),
    )
    for line in explanation(snapshot):
        click.echo(line)


def _progressed(manifest: Manifest) -> Time | None:
    """Return when the controller last changed `status.training`, from the managed fields."""
    times = [
        from_rfc3339(entry["time"])
        for entry in manifest["metadata"].get("managedFields") or ()
        if "time" in entry and "f:training" in (entry.get("fieldsV1") or {}).get("f:status", ())
    ]
    return max(times, default=None)


def _unreachable(connection: ClusterConnection, pods: tuple[Pod, ...]) -> dict[str, Time]:
    """Get the unreachable nodes of the pods that are not ready, and since when they are."""
    nodes = {}
    for name in sorted({pod.node for pod in pods if pod.node and not pod.is_ready}):
        with suppress(MissingError):
            if since := unreachable_since(connection.get(NODE.path(None, name))):
                nodes[name] = since
    return nodes


def _warnings(connection: ClusterConnection, job: Job) -> Iterator[WarningEvent]:
    """Yield warnings about the pods and StatefulSets of the job, the latest last.

    Those of an earlier job of the same name stay for an hour, and are skipped.
    """
    head, created = f"{job.name}-", rfc3339(job.created).rstrip("Z")
    found = [
        event
        for event in connection.items(EVENT.path(job.namespace), fieldSelector="type=Warning")
        if event["involvedObject"].get("name", "").startswith(head) and event_time(event) >= created
    ]
    for event in sorted(found, key=event_time):
        about = event["involvedObject"]
        yield WarningEvent(
            kind=about.get("kind", ""),
            name=about["name"],
            reason=event.get("reason", ""),
            message=sanitized(event.get("message", "")),
        )


def _lease(connection: ClusterConnection, path: str) -> OperatorLease | None:
    try:
        spec = connection.get(path).get("spec") or {}
    except MissingError:
        # It may have another namespace or name; the job's status shows whether an operator works.
        return None
    renewed = spec.get("renewTime")
    return OperatorLease(
        holder=spec.get("holderIdentity") or "",
        renewed=from_rfc3339(renewed) if renewed else None,
        seconds=int(spec.get("leaseDurationSeconds") or 1),
    )


def _reports(
    connection: ClusterConnection, job: Job, pods: tuple[Pod, ...]
) -> dict[str, ControllerReport]:
    """Get the reports of the ready pods' supervisors, by the API server's pod proxy."""
    if has_ended(job.status) or holds(job.status, "Rendezvoused"):
        return {}
    ready = [pod for pod in pods if pod.is_ready and not pod.is_deleting]
    with ThreadPoolExecutor(_CONCURRENT) as threads:
        reports = list(threads.map(lambda pod: _report(connection, pod), ready))
    return {report.pod_uid: report for report in reports if report is not None}


def _report(connection: ClusterConnection, pod: Pod) -> ControllerReport | None:
    path = f"{POD.path(pod.namespace, pod.name)}:{contract.PORT_HEALTH}/proxy/status"
    try:
        return read_report(pod.uid, connection.text(path, seconds=_SUPERVISOR_SECONDS))
    except (UnavailableError, MissingError, ValueError):
        return None
