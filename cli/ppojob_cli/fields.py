"""`ppojob fields`: prints the fields of a job."""

import re
import shutil
import textwrap
from collections.abc import Iterator

import click

from ppojob_api import contract, foreign_names, suggestions
from ppojob_api import shape as shapes
from ppojob_api.problem import Problem, shown
from ppojob_api.shape import PathKey
from ppojob_api.v1alpha1.job import PPOJobSpec

INDENT = "    "


@click.command("fields")
@click.argument("path", default="spec", metavar="[PATH]")
def fields(path: str) -> None:
    """Print the fields of a job: type, default, meaning, verl's name.

    PATH is a field such as spec.algorithm.kl; everything below it is printed. Without PATH, the
    fields of spec are printed. For an unknown PATH, or a name of verl, TRL or OpenRLHF, it prints
    the right field; for a section of theirs, such as optim, that of each key.
    """
    keys = [key for key in re.split(r"\.|\[[0-9]*\]", path) if key] or [path]
    if keys[0] in shapes.members(PPOJobSpec):
        keys = ["spec", *keys]
    problem = _problem(path, keys)
    if problem is not None:
        theirs = list(_keys_of_others(path))
        if theirs:
            same = ((name, one) for name, one in shapes.fields() if name.endswith(f".{path}"))
            ours = [line for name, one in same for line in _block(name, one.takes, one.meaning)]
            click.echo("\n".join((*ours, *theirs)))
            return
        click.echo(str(problem), err=True)
        raise SystemExit(contract.EXIT_INVALID)
    wanted = ".".join(keys)
    for place, member in shapes.fields():
        plain = place.replace("[]", "")
        is_top = plain.count(".") == 1
        if shapes.within(plain, wanted) and (is_top or wanted != "spec"):
            verl = f"verl: {member.verl}" if member.verl else ""
            click.echo("\n".join(_block(place, member.takes, member.meaning, verl)))
    if wanted == "spec":
        click.echo("\nppojob fields spec.algorithm prints what is below spec.algorithm.")


def _keys_of_others(section: str) -> Iterator[str]:
    """Yield our fields for the keys of a section of verl or OpenRLHF."""
    from ppojob_cli.verl import keys

    rows = {key.name: key.row for key in keys.rows().values()}
    rows |= {name: row for row in foreign_names.fields()["OpenRLHF"] for name in row.names}
    for name, row in rows.items():
        if f".{section}." in f".{name}":
            here = row.status or " and ".join(row.here)
            yield from _block(name, ", ".join(filter(None, (here, row.remark))))


def _block(name: str, *texts: str) -> Iterator[str]:
    yield click.style(name, bold=True)
    width = min(100, shutil.get_terminal_size().columns)
    for text in filter(None, texts):
        yield from textwrap.wrap(text, width, initial_indent=INDENT, subsequent_indent=INDENT)


def _problem(given: str, keys: list[str]) -> Problem | None:
    path: PathKey = ()
    for key in keys:
        path = (*path, key)
        shape = shapes.at(path)
        if shape is None:
            # The full path may be a field of another framework.
            is_foreign = suggestions.foreign_field(keys) is not None
            suggestion = suggestions.of_field(tuple(keys) if is_foreign else path, None)
            return Problem("PATH", shown(given), *suggestion)
        if shape.kind == "list":
            path = (*path, 0)
    return None
