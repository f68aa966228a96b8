"""`kubectl ppojob explain NAME`: why a job does not go on, and what to do."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ppojob_api.problem import printable
from ppojob_cli.cluster.options import on_cluster
from ppojob_cli.figures import counted

if TYPE_CHECKING:
    from ppojob_cli.cluster.connection import ClusterConnection
    from ppojob_cli.cluster.findings import Seen

_WIDTH = 100


@click.command()
@on_cluster
@click.option(
    "--operator-namespace",
    default="ppojob-system",
    show_default=True,
    metavar="NAMESPACE",
    help="Where the operator runs.",
)
@click.option(
    "--operator-name",
    default="ppojob-operator",
    show_default=True,
    metavar="NAME",
    help="Full name of its release, which its Lease has.",
)
def explain(
    connection: "ClusterConnection", name: str, operator_namespace: str, operator_name: str
) -> None:
    """Every reason why a job does not go on, and what to do about it.

    The most important comes first. Looks at the job, its pods, their nodes, events, supervisors
    and the operator's Lease, and says what it was not allowed to look at.
    """
    from ppojob_cli.cluster.observation import observe

    for line in explanation(observe(connection, name, (operator_namespace, operator_name))):
        click.echo(line)


def explanation(seen: "Seen") -> Iterator[str]:
    """What was found, as lines."""
    from ppojob_cli.cluster.findings import findings

    found = findings(seen)
    yield f"{seen.job.name}: {_summary(seen, len(found))}"
    for number, one in enumerate(found, start=1):
        head = f"{number}. {one.reason}: "
        yield ""
        yield from _wrapped(f"{head}{one.what}", "", "   ")
        yield from _wrapped(one.remedy, "   -> ", "      ")
    if seen.hidden:
        yield ""
    for line in seen.hidden:
        yield from _wrapped(f"not looked at: {line}", "", "  ")


def _summary(seen: "Seen", number: int) -> str:
    status = seen.job.status
    training = status.training
    step = f" at step {training.step} of {training.total_steps or '?'}" if training else ""
    where = f"{status.phase}{step}"
    if status.phase == "Succeeded":
        return f"{where}: done"
    if not number:
        return f"{where}: nothing that can be seen holds it up"
    return f"{where}: {counted(number, 'thing')} to know"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    # Words of a log or of a path are kept whole, so that they can be searched for.
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
