"""`summary.json`: how a run ended, in one small file."""

import json
from pathlib import Path

from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import METRICS_FILE, SUMMARY_FILE
from ppojob_trainer import durable
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.durable import read_lines

SUMMARY_POINT = durable.point("summary", *durable.FILE_ACTS)


def write_summary(folder: Path, config: RunConfig, progress: Progress, phase: str) -> None:
    """Write the summary of a run that has ended.

    Args:
        folder: the run folder.
        config: of the run.
        progress: state behind the last step.
        phase: `Succeeded` or `Interrupted`.
    """
    validations = [found for line in read_lines(folder / METRICS_FILE) if (found := _core(line))]
    summary = {
        "phase": phase,
        "name": config.name,
        "uid": config.uid,
        "config_sha256": config.digest(),
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "validation": {
            "first": validations[0] if validations else {},
            "last": validations[-1] if validations else {},
        },
    }
    text = json.dumps(summary, indent=2, sort_keys=True) + "\n"
    durable.write_file(folder / SUMMARY_FILE, text.encode(), SUMMARY_POINT)


def forget_summary(folder: Path) -> None:
    """Take away what an earlier run of the folder has said: it is not true of this one.

    A power cut may bring it back, until this run writes its own.
    """
    (folder / SUMMARY_FILE).unlink(missing_ok=True)


def _core(line: bytes) -> dict[str, float]:
    """The `val-core` numbers of a metrics line; empty where it has none."""
    return {name: value for name, value in json.loads(line).items() if name.startswith("val-core/")}
