"""`ppojob generate FILE`: responses to the held-out prompts of a job, without training."""

from pathlib import Path

import click
from pydantic import JsonValue

from ppojob_api.run_layout import RESPONSES_FILE
from ppojob_cli.job_file import Given, Override
from ppojob_cli.options import FOLDER, MANIFEST, set_option
from ppojob_cli.run import run_job

_GENERATE_ONLY = (
    Override("ppojob generate", ("spec", "steps", "generateOnly"), True, got="this job"),
    Override("ppojob generate", ("spec", "steps", "validateOnly"), False),
    Override("ppojob generate", ("spec", "loggers"), ["console"]),
)


@click.command()
@click.argument("file", type=MANIFEST)
@click.option(
    "--output",
    type=FOLDER,
    help=f"Run folder, in which {RESPONSES_FILE} is written; default: generated/<name of the job>. "
    "The same command resumes.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    help="File, pattern or folder/ with prompts, in place of spec.data.validation. Repeatable.",
)
@click.option(
    "--model",
    type=FOLDER,
    metavar="DIR",
    help="Model folder in place of spec.model.path, such as an export of a run.",
)
@set_option
@click.option("--plain", is_flag=True, help="Print plain lines instead of the live view.")
def generate(
    file: Path,
    output: Path | None,
    data: tuple[str, ...],
    model: Path | None,
    overrides: tuple[str, ...],
    plain: bool,
) -> None:
    """Generate responses to the held-out prompts of a job.

    Writes prompts and responses in the columns of verl's main_generation. The responses are those
    of the job's own validation at step 0: settings and number of samples are those of
    spec.rollout.validation. Nothing is scored or trained: no optimizer, trainer, reference, critic
    or reward function is loaded. `ppojob evaluate` scores what is written.

    Exit status: as of `ppojob run`.
    """
    given: list[Given] = [*_GENERATE_ONLY]
    if data:
        files: list[JsonValue] = [{"path": path} for path in data]
        given.append(Override("--data", ("spec", "data", "validation"), files))
    if model is not None:
        given.append(Override("--model", ("spec", "model", "path"), str(model)))
    run_job(file, output, (*given, *overrides), plain=plain, runs="generated")
