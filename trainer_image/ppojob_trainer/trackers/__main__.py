"""Uploads the metrics that a tracker lacks of a stopped run.

python -m ppojob_trainer.trackers wandb runs/addition-grpo
"""

import sys
from pathlib import Path

from ppojob_trainer.trackers.child import Uploader
from ppojob_trainer.trackers.messages import load_run


def main(tracker: str, folder: str) -> None:
    """Upload all steps of a run folder, and print the location of the run."""
    uploader = Uploader(load_run(tracker, Path(folder)))
    while uploader.upload():
        pass
    uploader.finish()
    sys.stdout.write(f"{uploader.location}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
