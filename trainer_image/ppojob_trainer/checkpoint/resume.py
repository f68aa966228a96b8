"""Where a run goes on: the newest whole commit, held against what the journal remembers."""

from ppojob_trainer.checkpoint.commit import CommitStore
from ppojob_trainer.checkpoint.journal import Event, last_sealed
from ppojob_trainer.checkpoint.sealed import Latest, Refusal, folder_name
from ppojob_trainer.errors import CheckpointLost


def resume_point(store: CommitStore, events: list[Event]) -> Latest:
    """Find where to go on, and never begin at step 0 in silence where commits once were.

    Args:
        store: the run's commits; nobody may be writing one.
        events: the run's journal.

    Returns:
        As ``CommitStore.latest``; a sealed commit whose folder is gone is a refusal too.

    Raises:
        CheckpointLost: the journal knows a commit, and none is there.
        CannotResume: the newest commit is of another job, configuration or format.
    """
    found = store.recover()
    sealed = last_sealed(events)
    if sealed is None:
        return found
    if found.commit is None:
        raise CheckpointLost(
            str(store.root),
            f"the journal says that step {sealed} was sealed, and no commit is there; bring the "
            "folder back, or begin anew in another run folder",
        )
    if found.commit.step >= sealed or sealed in {refusal.step for refusal in found.refusals}:
        return found
    gone = Refusal(step=sealed, file=folder_name(sealed), reason="the folder is missing")
    return Latest(commit=found.commit, refusals=(gone, *found.refusals))
