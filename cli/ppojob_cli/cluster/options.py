"""What every command about a job on a cluster takes: its name, and where it is."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from ppojob_cli.cluster.problems import ClusterUseError, told

# Loading the client library takes most of a second, which `--help` need not wait for.

if TYPE_CHECKING:
    from ppojob_cli.cluster.connection import ClusterConnection

P = ParamSpec("P")


def on_cluster(
    command: "Callable[Concatenate[ClusterConnection, str, P], None]",
) -> Callable[..., None]:
    """Give a command its job's name and the cluster, and tell problems in one line."""

    @click.argument("name", metavar="NAME")
    @click.option("-n", "--namespace", metavar="NAMESPACE", help="Of the job; default: kubectl's.")
    @click.option("--context", metavar="CONTEXT", help="Of the kubeconfig; default: the current.")
    @functools.wraps(command)
    def called(
        name: str, namespace: str | None, context: str | None, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        with told():
            try:
                from ppojob_cli.cluster.connection import connect
            except ModuleNotFoundError as problem:
                raise ClusterUseError(
                    f"{problem.name}: got nothing: commands about a cluster need it; "
                    "pip install 'ppojob[kubectl]'"
                ) from None
            command(connect(context, namespace), name, *args, **kwargs)

    return called
