"""Options of all cluster commands: the job's name, namespace and context."""

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from ppojob_api.problem import shown
from ppojob_api.well_known import JOB_NAME_PATTERN, NAMESPACE_PATTERN
from ppojob_cli.input_error import InputError
from ppojob_operator.errors import ClusterError, UnavailableError

if TYPE_CHECKING:
    from ppojob_cli.cluster.connection import ClusterConnection

C = TypeVar("C", bound=Callable[..., Any])
P = ParamSpec("P")


def cluster_options(command: C) -> C:
    """Add kubectl's options for choosing a cluster to a command."""
    for *names, metavar, text in (
        ("--kubeconfig", "FILE", "Kubeconfig file; default: KUBECONFIG, ~/.kube/config."),
        ("--context", "CONTEXT", "Context of the kubeconfig; default: the current one."),
        ("-n", "--namespace", "NAMESPACE", "Namespace of the job; default: kubectl's."),
    ):
        command = click.option(*names, metavar=metavar, help=text)(command)
    return command


def on_cluster(
    command: "Callable[Concatenate[ClusterConnection, str, P], None]",
) -> Callable[..., None]:
    """Add the job's name and the cluster to a command, and report errors in one line."""

    @click.argument("name", metavar="NAME")
    @cluster_options
    @functools.wraps(command)
    def called(
        name: str,
        namespace: str | None,
        context: str | None,
        kubeconfig: str | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        from ppojob_cli.cluster.connection import connect

        _check_names(name, namespace)
        try:
            command(connect(context, namespace, kubeconfig), name, *args, **kwargs)
        except ClusterError as problem:
            raise InputError(_one_line(problem)) from None

    return called


def _check_names(name: str, namespace: str | None) -> None:
    """Refuse invalid names, which would change the paths of requests."""
    if not re.fullmatch(JOB_NAME_PATTERN, name):
        allowed = "a letter, then letters, digits and hyphens, all lower case"
        raise InputError(f"NAME: got {shown(name)}: no job has such a name; {allowed}")
    if namespace is not None and not re.fullmatch(NAMESPACE_PATTERN, namespace):
        why, allowed = "no namespace has such a name", "letters, digits and hyphens, all lower case"
        raise InputError(f"--namespace: got {shown(namespace)}: {why}; {allowed}")


def _one_line(problem: ClusterError) -> str:
    """Describe what the API server refused, and what to do about it."""
    why = " ".join(str(problem).split())
    if problem.status == 0:
        return why
    allowed = "what the API server takes"
    if problem.status == 401:
        why, allowed = "the API server does not know you", "log in again, see kubectl auth whoami"
    elif problem.status == 403:
        allowed = "ask for that right, see kubectl auth can-i --list"
    elif isinstance(problem, UnavailableError):
        why, allowed = why or "the API server is in trouble", "try again"
    return f"cluster: got {problem.status}: {why}; {allowed}"
