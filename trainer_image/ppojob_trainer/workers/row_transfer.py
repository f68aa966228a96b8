"""Row transfer from rollout engines to the ranks that own the rows.

Both sides know which rank generated and which owns each prompt, so each computes its peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ppojob_trainer.parallel.link import Link, exchange_messages
from ppojob_trainer.rollout.trajectory import Trajectory
from ppojob_trainer.rpc.messages.rollout import HandOver, PromptTokens

Range = tuple[int, int]
"""Positions `[first, last)` of prompts in their batch."""


class GeneratedRows(msgspec.Struct, frozen=True, array_like=True):
    """Generated rows of a range of prompts, prompt-major."""

    first: int  # position in the batch of the first prompt
    prompts: list[PromptTokens]
    samples: int
    trajectories: list[Trajectory]

    def within(self, range_: Range) -> GeneratedRows:
        """Return the rows of prompts within a range, which overlaps this one or is empty."""
        first = max(self.first, range_[0])
        begin, end = first - self.first, min(range_[1] - self.first, len(self.prompts))
        rows = slice(begin * self.samples, end * self.samples)
        return GeneratedRows(first, self.prompts[begin:end], self.samples, self.trajectories[rows])


_DECODER = msgspec.msgpack.Decoder(list[GeneratedRows])


def send_rows(link: Link, request: HandOver, made: Sequence[GeneratedRows]) -> None:
    """Send the rows of this rank, by batch as in the request, to their owners.

    The link's members are the owners, followed by the generating ranks.

    Raises:
        ChannelLost: an owner is gone.
    """
    mine = (made[0].first, made[0].first + len(made[0].prompts))
    outgoing = {
        owner: msgspec.msgpack.encode([rows.within(run) for rows in made])
        for owner, run in enumerate(request.owners)
        if _overlap(run, mine)
    }
    exchange_messages(link, outgoing, ())


def receive_rows(
    link: Link, request: HandOver, owner: int, first_sender: int
) -> list[GeneratedRows]:
    """Receive the rows that this rank owns, maybe none, by batch as in the request.

    `first_sender` is the link member of the first generating rank.

    Raises:
        ChannelLost: a generating rank is gone.
    """
    mine = request.owners[owner]
    senders = [
        first_sender + maker for maker, run in enumerate(request.makers) if _overlap(run, mine)
    ]
    if not senders:
        return [GeneratedRows(mine[0], [], 1, []) for _ in request.batches]
    received = exchange_messages(link, {}, senders)
    parts = [_DECODER.decode(received[sender]) for sender in senders]
    return [_concatenate(batch) for batch in zip(*parts, strict=True)]


def _concatenate(parts: Sequence[GeneratedRows]) -> GeneratedRows:
    """Concatenate consecutive ranges."""
    return msgspec.structs.replace(
        parts[0],
        prompts=[prompt for part in parts for prompt in part.prompts],
        trajectories=[row for part in parts for row in part.trajectories],
    )


def _overlap(one: Range, other: Range) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])
