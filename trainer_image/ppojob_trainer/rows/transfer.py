"""Which groups move from where to where: a pure plan that every member of a link makes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Where each group of a batch is, and where it is needed.

    Places are members of one link: ranks within a role; on a channel the ranks of the first role
    and, after them, those of the second.

    Attributes:
        sources: (groups,) the member that holds each group, by batch position.
        destinations: (groups,) the member that is to have it.

    Raises:
        ValueError: when they differ in number.
    """

    sources: tuple[int, ...]
    destinations: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.destinations):
            raise ValueError(
                f"destinations: got {len(self.destinations)}: one a group is needed; "
                f"{len(self.sources)}"
            )

    @property
    def reversed(self) -> TransferPlan:
        """The way back."""
        return TransferPlan(self.destinations, self.sources)

    def held_by(self, member: int) -> tuple[int, ...]:
        """Batch positions of what a member has before, in batch order."""
        return _positions(self.sources, member)

    def needed_by(self, member: int) -> tuple[int, ...]:
        """Batch positions of what a member has after, in batch order."""
        return _positions(self.destinations, member)

    def outgoing(self, member: int) -> dict[int, list[int]]:
        """What a member sends: destination -> batch positions; nothing to itself."""
        return _by_place(self.held_by(member), self.destinations, member)

    def incoming(self, member: int) -> dict[int, list[int]]:
        """What a member receives: source -> batch positions; nothing from itself."""
        return _by_place(self.needed_by(member), self.sources, member)


def _positions(places: Sequence[int], member: int) -> tuple[int, ...]:
    return tuple(position for position, place in enumerate(places) if place == member)


def _by_place(positions: Sequence[int], places: Sequence[int], member: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for position in positions:
        if places[position] != member:
            found.setdefault(places[position], []).append(position)
    return found
