"""How far a run is that tests make up."""

from ppojob_trainer.checkpoint.manifest import DataCursor, Progress


def progress_behind(step: int) -> Progress:
    """The state of a run that has done a step and nothing of note."""
    begun = DataCursor(epoch=0, cursor=0, sha256="0" * 64)
    return Progress(
        step=step,
        data=begun,
        demonstrations=begun,
        kl_coefficient=None,
        metrics_lines=step,
        tokens=0,
        seconds=0.0,
    )
