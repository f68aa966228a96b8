"""`kubectl ppojob metrics NAME`: the current metrics of a job's controller."""

import time
from collections.abc import Iterator
from typing import Final

import click

from ppojob_api import contract
from ppojob_api.problem import printable, shown
from ppojob_api.well_known import pod_name
from ppojob_cli.cluster.connection import ClusterConnection
from ppojob_cli.cluster.jobs import find_job
from ppojob_cli.cluster.options import on_cluster
from ppojob_cli.figures import number
from ppojob_cli.input_error import InputError
from ppojob_operator.errors import MissingError, UnavailableError
from ppojob_operator.kinds import POD

_WATCH_SECONDS: Final = 5.0
_JOB_LABEL: Final = "ppojob"
_SKIPPED_ENDINGS: Final = ("_bucket", "_created")


@click.command()
@on_cluster
@click.option("--watch", is_flag=True, help="Refresh every 5 s, until Ctrl-C.")
@click.option("--raw", is_flag=True, help="Print the controller's raw output, for programs.")
def metrics(connection: ClusterConnection, name: str, *, watch: bool, raw: bool) -> None:
    """Metrics of a job's last step, by name, and what they mean.

    They come from the controller's pod through the API server's pod proxy, so you need neither
    Prometheus nor a port-forward. For histograms it shows count and sum.
    """
    while True:
        text = _scraped(connection, name)
        if raw:
            click.echo(text, nl=False)
        else:
            for line in _table(text):
                click.echo(line)
        if not watch:
            return
        time.sleep(_WATCH_SECONDS)
        click.echo()


def _table(text: str) -> Iterator[str]:
    """Format the metrics as aligned columns, sorted by name: name, value, meaning."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        rows = sorted(
            (_named(sample.name, sample.labels), number(sample.value), family.documentation)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith(_SKIPPED_ENDINGS)
        )
    except ValueError as problem:
        raise InputError(
            f"metrics: got {shown(text)}: {problem}; the text format of Prometheus"
        ) from None
    names, values = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    for name, value, meaning in rows:
        yield printable(f"{name:<{names}}  {value:>{values}}  {meaning}".rstrip())


def _scraped(connection: ClusterConnection, name: str) -> str:
    job, pod = find_job(connection, name), pod_name(name, "controller", 0)
    path = f"{POD.path(connection.namespace, pod)}:{contract.PORT_METRICS}/proxy/metrics"
    try:
        return connection.text(path)
    except (MissingError, UnavailableError) as problem:
        if problem.status == 0:
            raise
        raise InputError(
            f"metrics: got no answer from pod {pod}: the job is {job.status.phase}; "
            f"a job that makes steps, see kubectl ppojob explain {name}"
        ) from None


def _named(name: str, labels: dict[str, str]) -> str:
    text = ",".join(f'{key}="{value}"' for key, value in labels.items() if key != _JOB_LABEL)
    return f"{name}{{{text}}}" if text else name
