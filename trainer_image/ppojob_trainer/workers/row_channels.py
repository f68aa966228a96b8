"""Channels between the owners of rows and other roles, and the rows that rollout engines send.

Both sides compute which ranks own, generate or compute which rows, so no peer is announced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ppojob_api import contract
from ppojob_trainer.parallel.channel import Channel, open_channel
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.link import Link, exchange_messages
from ppojob_trainer.parallel.world import Rendezvous, World, find_store
from ppojob_trainer.rollout.trajectory import Trajectory
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.exchange import TransferPlan, move_rows, return_columns
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.rollout import PromptTokens, TransferRows
from ppojob_trainer.rpc.messages.rows import CutChannel, MoveColumns, OpenChannel
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.workers.batch_rows import GroupCosts


@dataclass(frozen=True)
class _Route:
    """An open channel; its members are the ranks that own rows, followed by the consumers."""

    channel: Channel
    owners: int
    consumers: ParallelDims


@dataclass
class RowChannels:
    """Opens channels, and moves rows over them."""

    world: World  # of this role
    owns_rows: bool  # whether the ranks of this role own the rows
    address: str  # IP address of this pod
    host: Callable[[str], str]  # returns the address of a pod by its name
    costs: GroupCosts  # the cost model for balancing the consumers
    dims_of: Callable[[str], ParallelDims]  # the layout of a role that has ranks of its own
    _routes: dict[str, _Route] = field(default_factory=dict)

    def routes(self) -> list[Route]:
        return [Route(methods.OPEN_CHANNEL, self.open), Route(methods.CUT_CHANNEL, self._cut)]

    def open(self, request: OpenChannel) -> None:
        """Open a channel, unless it is open; one to an older attempt of that role is closed."""
        route = self._routes.get(request.role)
        if route is not None:
            if route.channel.key == request.key:
                return
            del self._routes[request.role]
            route.channel.close()
        store = self.world.store
        if not self.owns_rows:
            host = self.host(request.store_host)
            store = find_store(Rendezvous(host, contract.PORT_STORE, request.store_key))
        channel = open_channel(
            store,
            key=request.key,
            member=self.world.rank + (0 if self.owns_rows else request.owners),
            size=request.owners + request.consumers,
            address=self.address,
            device=self.world.device,
            timeout_seconds=request.seconds,
        )
        consumers = self.dims_of(request.role) if self.owns_rows else self.world.dims
        self._routes[request.role] = _Route(channel, request.owners, consumers)

    def _cut(self, request: CutChannel) -> None:
        route = self._routes.get(request.role)
        if route is not None:
            route.channel.cut()

    def link(self, role: str) -> Channel:
        return self._routes[role].channel

    def owners(self, role: str) -> int:
        """Return how many ranks own rows on the channel to a role: its first members."""
        return self._routes[role].owners

    def move_rows(
        self, role: str, index: BatchIndex, mine: Experience | None
    ) -> tuple[BatchIndex, Experience]:
        """Move all rows from their owners to the consumers, each to a leader of a coordinate.

        `mine` are the rows of an owner, None on a consumer. Returns the index of the rows at the
        consumers, and the rows of this rank as a consumer.
        """
        route = self._routes[role]
        plan = self._plan(route, index)
        moved = move_rows(route.channel, index, plan, mine)
        consumers = tuple(member - route.owners for member in plan.destinations)
        return msgspec.structs.replace(index, owners=consumers), moved

    def move_columns(self, request: MoveColumns, mine: Experience) -> None:
        """Move columns of rows that owners and consumers both have."""
        route, index = self._routes[request.role], request.index
        plan = self._plan(route, index)
        sends = self.owns_rows is not request.to_owners
        return_columns(
            route.channel,
            index,
            plan if request.to_owners else plan.reversed,
            request.columns,
            staged=mine if sends else None,
            owned=None if sends else mine,
        )

    def _plan(self, route: _Route, index: BatchIndex) -> TransferPlan:
        consumers = self.costs.leaders(index, route.consumers)
        return TransferPlan(index.owners, tuple(route.owners + consumer for consumer in consumers))


Range = tuple[int, int]
"""Positions `[first, last)` of prompts in their batch."""


class GeneratedRows(msgspec.Struct, frozen=True, array_like=True):
    """Generated rows of a range of prompts, prompt-major."""

    first: int  # position in the batch of the first prompt
    prompts: list[PromptTokens]
    samples: int
    trajectories: list[Trajectory]

    def within(self, range_: Range) -> "GeneratedRows":
        """Return the rows of prompts within a range, which overlaps this one or is empty."""
        first = max(self.first, range_[0])
        begin, end = first - self.first, min(range_[1] - self.first, len(self.prompts))
        rows = slice(begin * self.samples, end * self.samples)
        return GeneratedRows(first, self.prompts[begin:end], self.samples, self.trajectories[rows])


_DECODER = msgspec.msgpack.Decoder(list[GeneratedRows])


def send_rows(link: Link, request: TransferRows, made: Sequence[GeneratedRows]) -> None:
    """Send the rows of this rank, by batch as in the request, to their owners.

    The link's members are the owners, followed by the generating ranks.
    """
    mine = (made[0].first, made[0].first + len(made[0].prompts))
    outgoing = {
        owner: msgspec.msgpack.encode([rows.within(run) for rows in made])
        for owner, run in enumerate(request.owners)
        if _overlap(run, mine)
    }
    exchange_messages(link, outgoing, ())


def receive_rows(
    link: Link, request: TransferRows, owner: int, first_sender: int
) -> list[GeneratedRows]:
    """Receive the rows that this rank owns, maybe none, by batch as in the request.

    `first_sender` is the link member of the first generating rank.
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
    return msgspec.structs.replace(
        parts[0],
        prompts=[prompt for part in parts for prompt in part.prompts],
        trajectories=[row for part in parts for row in part.trajectories],
    )


def _overlap(one: Range, other: Range) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])
