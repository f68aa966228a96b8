"""A job on a cluster, and its pods."""

import difflib
import time
from collections.abc import Iterator
from contextlib import suppress

from ppojob_api.well_known import KIND, PLURAL
from ppojob_cli.cluster.connection import ClusterConnection
from ppojob_cli.input_error import InputError
from ppojob_operator.build.metadata import LABEL_JOB_UID
from ppojob_operator.errors import ClusterError, MissingError, UnavailableError
from ppojob_operator.kinds import JOB, POD
from ppojob_operator.reading import read_job, read_pod
from ppojob_operator.state import Job, Manifest, Pod

_NAMES_SHOWN = 8


def find_manifest(connection: ClusterConnection, name: str) -> Manifest:
    """Get the object of a job; an `InputError` says which jobs there are instead."""
    try:
        return connection.get(JOB.path(connection.namespace, name))
    except MissingError:
        raise InputError(_no_such_job(connection, name)) from None


def find_job(connection: ClusterConnection, name: str) -> Job:
    """Get the current state of a job."""
    return as_job(find_manifest(connection, name))


def as_job(manifest: Manifest) -> Job:
    """Parse the object of a job; an `InputError` if its status is of another version."""
    try:
        return read_job(manifest)
    except ValueError as problem:
        first = str(problem).splitlines()[0]
        raise InputError(
            f"status: got {first}: it is of another version of PPOJob; "
            "the command line of the operator's version"
        ) from None


def poll_job(connection: ClusterConnection, job: Job, seconds: float) -> Iterator[Job]:
    """Yield the job, and then its new state after each interval; outages are ignored."""
    while True:
        yield job
        time.sleep(seconds)
        with suppress(UnavailableError):
            job = find_job(connection, job.name)


def pods_of(connection: ClusterConnection, job: Job) -> Iterator[Pod]:
    """Yield the existing pods of a job."""
    selector = f"{LABEL_JOB_UID}={job.uid}"
    for manifest in connection.items(POD.path(job.namespace), labelSelector=selector):
        pod = read_pod(manifest)
        if pod is not None:
            yield pod


def _no_such_job(connection: ClusterConnection, name: str) -> str:
    """Say why a name finds nothing, with the most similar names."""
    place = f"namespace {connection.namespace}"
    head = f'NAME: got "{name}"'
    try:
        names = [
            one["metadata"]["name"] for one in connection.items(JOB.path(connection.namespace))
        ]
    except MissingError:
        return (
            f"cluster: got no resource {PLURAL}: {KIND} is not installed; "
            "install the operator first, docs/installing.md"
        )
    except ClusterError:
        return f"{head}: {place} has no such {KIND}; kubectl get {PLURAL} --all-namespaces"
    if not names:
        return f"{head}: {place} has no {KIND}; another --namespace"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"{head}: {place} has no such {KIND}; did you mean {' or '.join(near)}"
    shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{head}: {place} has no such {KIND}; one of {shown}{more}"
