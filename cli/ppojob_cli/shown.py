"""What every view shows, and what it may ask for it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppojob_cli.run_reader import RunReader
from ppojob_cli.run_state import PodState, StepRecord

PodStates = Callable[[], Sequence[PodState]]
"""Asks the pods how they are; called while they start."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown, and by what name.

    Attributes:
        name: Of the job.
        folder: The run folder.
        reader: Reads it.
        num_samples: Samples shown of each step and validation.
        clock: Unix seconds.
    """

    name: str
    folder: Path
    reader: RunReader
    num_samples: int = 0
    clock: Callable[[], float] = time.time

    def sample_lines(self, record: StepRecord) -> Iterable[str]:
        """The samples of a step and of the validation behind it, as lines."""
        if not self.num_samples:
            return
        # Parquet takes half a second to load, and pods are waiting to be started before.
        from ppojob_trainer.controller.samples import read_samples, sample_lines

        purposes = ["train"] if record.step > 0 else []
        purposes += ["validation"] if record.validation else []
        for purpose in purposes:
            for sample in read_samples(self.folder, purpose, record.step, self.num_samples):
                yield from sample_lines(sample)
