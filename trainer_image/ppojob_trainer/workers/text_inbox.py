"""Inbox for response texts, sent from the ranks that own them to those that score them."""

from collections.abc import Sequence

from ppojob_trainer.errors import JobFailed
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.messages.scoring import Texts


class TextInbox:
    """Stores the texts of batches until they are scored.

    Texts may arrive twice, and late, as senders retry or are replaced. So they are stored by batch;
    taking rows of a batch drops older steps.
    """

    def __init__(self) -> None:
        self._batches: dict[BatchName, dict[int, str]] = {}

    def put(self, request: Texts) -> None:
        """Store texts; several owners send, in any order."""
        texts = self._batches.setdefault(request.batch, {})
        texts.update(enumerate(request.texts, start=request.first))

    def take(self, batch: BatchName, rows: Sequence[int]) -> list[str]:
        """Remove and return the texts of rows of a batch; JobFailed if one is missing."""
        texts = self._batches.get(batch, {})
        missing = [row for row in rows if row not in texts]
        if missing:
            raise JobFailed(f"{batch.label}: the text of row {missing[0]} never arrived")
        now = (batch.rewinds, batch.step)
        # A copy, as other threads add batches.
        for name in list(self._batches):
            if (name.rewinds, name.step) < now:
                del self._batches[name]
        return [texts.pop(row) for row in rows]
