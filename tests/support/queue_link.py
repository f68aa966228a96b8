"""A link between threads of a test: a queue for each pair of members."""

import queue
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ppojob_trainer.errors import ChannelLost

SECONDS = 60


@dataclass
class Queues:
    """What the members of a link share.

    Attributes:
        size: members.
        largest_bytes: of what went over in one exchange.
        moved_bytes: of all that went over, from a member to another.
        dead: members that take nothing and send nothing.
    """

    size: int
    largest_bytes: int = 0
    moved_bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    dead: frozenset[int] = frozenset()
    pairs: dict[tuple[int, int], queue.SimpleQueue[bytes]] = field(
        default_factory=lambda: defaultdict(queue.SimpleQueue)
    )


@dataclass
class QueueLink:
    shared: Queues
    member: int

    @property
    def size(self) -> int:
        return self.shared.size

    def exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]
    ) -> dict[int, Tensor]:
        if self.shared.dead & {*outgoing, *incoming}:
            raise ChannelLost("key", "a peer is gone")
        assert self.member not in outgoing
        for member, payload in outgoing.items():
            assert payload.dtype == torch.uint8
            self.shared.largest_bytes = max(self.shared.largest_bytes, payload.numel())
            self.shared.moved_bytes[self.member, member] += payload.numel()
            self.shared.pairs[self.member, member].put(payload.numpy().tobytes())
        return {
            member: self._letter(self.shared.pairs[member, self.member].get(timeout=SECONDS), size)
            for member, size in incoming.items()
        }

    def _letter(self, letter: bytes, size: int) -> Tensor:
        assert len(letter) == size
        # At an odd address: what arrives need not suit any type.
        return torch.tensor([0, *letter], dtype=torch.uint8)[1:]


def all_at_once(shared: Queues, *acts: Callable[[QueueLink], object]) -> list[object]:
    with ThreadPoolExecutor(len(acts)) as threads:
        links = [QueueLink(shared, member) for member in range(len(acts))]
        futures = [threads.submit(act, link) for act, link in zip(acts, links, strict=True)]
        results = [future.result() for future in futures]
    assert all(pair.empty() for pair in shared.pairs.values()), "all that was sent was expected"
    return results
