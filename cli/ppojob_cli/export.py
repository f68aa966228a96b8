"""`ppojob export`: the model of a checkpoint as a Hugging Face folder, or its adapters."""

import re
import tempfile
from pathlib import Path

import click

from ppojob_api.problem import shown
from ppojob_api.run_layout import CHECKPOINTS_FOLDER
from ppojob_cli.input_error import InputError, output_errors
from ppojob_cli.options import FOLDER

_STEP = re.compile(r"[0-9]+")
_POINTERS = ("latest", "best")


@click.command("export")
@click.argument("run", metavar="RUN", type=FOLDER)
@click.option(
    "--checkpoint",
    "--step",
    "checkpoint",
    default="latest",
    metavar="latest|best|STEP",
    help="Which checkpoint.",
)
@click.option("--output", required=True, type=FOLDER, metavar="DIR", help="Output folder.")
@click.option("--adapters", is_flag=True, help="Only the LoRA adapters, in PEFT's form.")
@click.option("--critic", is_flag=True, help="The critic that the job has trained, not the policy.")
def export(run: Path, checkpoint: str, output: Path, *, adapters: bool, critic: bool) -> None:
    """Write the policy of a checkpoint in Hugging Face form.

    RUN is the run folder. It gathers the weights, however many ranks wrote them. Needs no
    GPU and no running job.
    """
    from ppojob_trainer.models.adapter_files import CONFIG_FILE

    folder = _checkpoint_folder(run, checkpoint)
    config = CONFIG_FILE if adapters else "config.json"
    _check_output(output, config)
    is_another = (output / config).is_file()
    # It takes torch, which takes seconds to load.
    from ppojob_trainer.checkpoint.export_checkpoint import export_checkpoint

    step = export_checkpoint(folder, output, only_adapters=adapters, critic=critic)
    what = "the adapters" if adapters else "the model"
    whose = " of the critic" if critic else ""
    before = ", in place of the one that was there" if is_another else ""
    click.echo(f"{output}: {what}{whose} after step {step}{before}")


def _checkpoint_folder(run: Path, checkpoint: str) -> Path:
    from ppojob_trainer.checkpoint.store import folder_name

    root = run / CHECKPOINTS_FOLDER
    found = sorted(path.name for path in root.glob("step-*"))
    if not found:
        why = "it holds no checkpoint" if run.exists() else "there is no such folder"
        raise InputError(f"RUN: got {run}: {why}; the run folder of a job")
    name = folder_name(int(checkpoint)) if _STEP.fullmatch(checkpoint) else checkpoint
    is_known = name in found or (name in _POINTERS and (root / name).exists())
    if not is_known:
        steps = ", ".join(str(int(step.removeprefix("step-"))) for step in found)
        pointers = ", ".join(name for name in _POINTERS if (root / name).exists())
        raise InputError(
            f"--checkpoint: got {shown(checkpoint)}: there is none of that name; "
            f"one of {pointers}, {steps}"
        )
    return (root / name).resolve()


def _check_output(output: Path, config: str) -> None:
    """Check that the folder is writable, and empty or an export of the same kind."""
    if output.exists() and any(output.iterdir()) and not (output / config).is_file():
        raise InputError(
            f"--output: got {output}: it is not empty, and has no {config}; a new folder, or an "
            "export of the same kind"
        )
    with output_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output.parent).close()
