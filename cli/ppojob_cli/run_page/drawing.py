"""HTML of the run page: an escaping template, with a policy that allows only our script."""

import base64
import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup

import ppojob_trainer
from ppojob_api.problem import printable
from ppojob_cli.figures import number
from ppojob_cli.run_page import charts
from ppojob_cli.run_page.charts import draw_charts
from ppojob_cli.run_page.facts import PageRun, date
from ppojob_cli.run_page.sampling import clipped, read_samples

_FOLDER: Final = Path(__file__).parent
_CONFIG_BYTES: Final = 15_000
_DIFFERENCES: Final = 100
_SETTING_BYTES: Final = 150
_VALIDATIONS: Final = 4


def draw_page(runs: Sequence[PageRun], steps: Collection[int], each: int) -> str:
    """Draw the page of runs, with so many responses of each kind for each of the steps."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["date"] = date
    ours = ((_FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
    style, script = map(Markup, ours)  # which need no escaping
    return environment.get_template("page.html").render(
        title=runs[0].label if len(runs) == 1 else f"{len(runs)} runs",
        style=style,
        script=script,
        policy=(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        version=ppojob_trainer.version(),
        made=date(time.time()),
        runs=runs,
        configurations=[clipped(run.config, _CONFIG_BYTES) for run in runs],
        overview=list(_overview(runs)),
        charts=draw_charts(runs),
        size=charts,
        differences=list(islice(_differences(runs), _DIFFERENCES)),
        batches=list(read_samples(runs, steps, each)),
    )


def _visible(value: object) -> object:
    """Escape control characters of a value in the template, except ends of lines."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "\n".join(map(printable, value.split("\n")))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _overview(runs: Sequence[PageRun]) -> Iterator[tuple[str, list[str]]]:
    """Yield the first and last value of each metric, a line per metric and a column per run."""
    figures = [run.state.figure_series() for run in runs]
    validations = [run.state.validation_series() for run in runs]
    names = dict.fromkeys(name for own in validations for name in own)
    for name in islice((name for name in names if not name.endswith("/std")), _VALIDATIONS):
        yield f"validation {name}", [_from_to(own.get(name, [])) for own in validations]
    for name in dict.fromkeys(name for own in figures for name in own):
        yield name, [_from_to(own.get(name, [])) for own in figures]


def _from_to(values: Sequence[float]) -> str:
    if not values:
        return ""
    first, last = number(values[0]), number(values[-1])
    return last if len(values) == 1 else f"{first} \N{RIGHTWARDS ARROW} {last}"


def _differences(runs: Sequence[PageRun]) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields that differ, with a cell per run, which is empty for no value."""
    if len(runs) < 2:
        return
    for path in sorted({path for run in runs for path in run.settings}):
        values = [run.settings.get(path, "") for run in runs]
        if len(set(values)) > 1:
            yield path, [clipped(value, _SETTING_BYTES) for value in values]
