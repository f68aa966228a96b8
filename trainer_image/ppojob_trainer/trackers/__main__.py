"""Manual upload of a stopped run's missing metrics to a tracker.

python -m ppojob_trainer.trackers wandb runs/addition-grpo
"""

import sys
from pathlib import Path

from ppojob_trainer.trackers.child import Follower
from ppojob_trainer.trackers.messages import kept_run


def main(tracker: str, folder: str) -> None:
    """Send all steps of a run folder, and say where people find them."""
    follower = Follower(kept_run(tracker, Path(folder)))
    while follower.send():
        pass
    follower.finish()
    sys.stdout.write(f"{follower.told}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
