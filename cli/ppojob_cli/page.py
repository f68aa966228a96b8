"""`ppojob page RUN...`: a run as one HTML file, for somebody who has no access to the machine."""

from pathlib import Path
from typing import Final

import click

from ppojob_api.problem import counted
from ppojob_cli.input_error import InputError, output_errors
from ppojob_cli.options import FILE

_COLOURS: Final = 8
_MOST_STEPS: Final = 10


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    default="page.html",
    type=FILE,
    metavar="FILE",
    help="Output file; an existing one is replaced.",
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help=f"Step whose responses are shown; default: five of each run. Repeatable, {_MOST_STEPS} at "
    "most.",
)
@click.option(
    "--samples",
    default=2,
    type=click.IntRange(1, 5),
    help="Responses per step: this many of the best, the worst and random ones.",
)
def page(runs: tuple[Path, ...], output: Path, steps: tuple[int, ...], samples: int) -> None:
    """Write curves and responses of runs to one HTML file.

    RUN is a run folder; up to eight are drawn in one chart. A run may be active, finished or
    broken. The file opens in any browser, is under 2 MB, and needs no network. It contains prompts,
    responses and the configuration: send it only to people who may see them.
    """
    from ppojob_cli.run_page.drawing import draw_page
    from ppojob_cli.run_page.facts import read_runs
    from ppojob_cli.run_page.sampling import steps_with_responses

    if len(runs) > _COLOURS:
        raise InputError(f"RUN: got {len(runs)}: there are {_COLOURS} colours; {_COLOURS} at most")
    if len(steps) > _MOST_STEPS:
        raise InputError(f"--step: got {len(steps)}: the page would be long; {_MOST_STEPS} at most")
    found = read_runs(runs)
    available = steps_with_responses(found) if steps else []
    if missing := sorted(set(steps) - set(available)):
        got = ", ".join(map(str, missing))
        allowed = f"steps from {available[0]} to {available[-1]}" if available else "no --step"
        raise InputError(f"--step: got {got}: no run has kept responses of it; {allowed}")
    text = draw_page(found, frozenset(steps), samples)
    temporary = output.with_name(f".{output.name}.aside")
    try:
        with output_errors(output, "a file that can be written"):
            temporary.write_text(text, "utf-8")
            temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    size = f"{len(text.encode()) / 1_000:,.0f} kB"
    click.echo(f"{output}: {counted(len(runs), 'run')}, {size}; it holds prompts and responses")
