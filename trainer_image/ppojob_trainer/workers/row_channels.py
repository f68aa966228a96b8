"""Channels between the owners of rows and the roles that compute on them, as one rank sees them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ppojob_api import contract
from ppojob_trainer.parallel.channel import Channel, open_channel
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.world import MeetingPoint, World, find_store
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.exchange import move_rows, return_columns
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rows.transfer import TransferPlan
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.rows import CutChannel, MoveColumns, OpenChannel, RowIndex
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing
from ppojob_trainer.workers.batch_rows import GroupCosts


@dataclass(frozen=True)
class _Route:
    """An open channel, and the numbers of its members.

    Attributes:
        channel: to the other role.
        owners: ranks of the owning role: members 0, 1, ...
        consumers: layout of the other role, whose ranks are the members behind those.
    """

    channel: Channel
    owners: int
    consumers: ParallelDims


@dataclass
class RowChannels:
    """Opens channels, and moves rows over them.

    Attributes:
        world: of this role.
        owns_rows: whether the ranks of this role own the rows.
        address: IP address of this pod.
        host: where to reach a pod by its name.
        costs: by which the consumers share the rows.
        dims_of: the layout of a role that has ranks of its own.
    """

    world: World
    owns_rows: bool
    address: str
    host: Callable[[str], str]
    costs: GroupCosts
    dims_of: Callable[[str], ParallelDims]
    _routes: dict[str, _Route] = field(default_factory=dict)

    def routes(self) -> list[Route]:
        """The methods of every rank that has channels."""
        return [
            Route(methods.OPEN_CHANNEL, self._open),
            Route(methods.CUT_CHANNEL, self._cut),
        ]

    def _open(self, request: OpenChannel) -> Nothing:
        self.open(request)
        return Nothing()

    def _cut(self, request: CutChannel) -> Nothing:
        self.cut(request.role)
        return Nothing()

    def open(self, request: OpenChannel) -> None:
        """Open a channel, unless it is open; one to an older epoch of that role is closed.

        Raises:
            ChannelLost: not all members came.
        """
        route = self._routes.get(request.role)
        if route is not None:
            if route.channel.key == request.key:
                return
            del self._routes[request.role]
            route.channel.close()
        store = self.world.store
        if not self.owns_rows:
            host = self.host(request.store_host)
            store = find_store(MeetingPoint(host, contract.PORT_STORE, request.store_key))
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
        consumers.check_size(request.consumers)
        self._routes[request.role] = _Route(channel, request.owners, consumers)

    def link(self, role: str) -> Channel:
        """The open channel to a role."""
        return self._routes[role].channel

    def owners(self, role: str) -> int:
        """Ranks that own rows on the channel to a role: its first members."""
        return self._routes[role].owners

    def cut(self, role: str) -> None:
        """End what waits on the channel to a role; to be called from another thread."""
        route = self._routes.get(role)
        if route is not None:
            route.channel.cut()

    def move_rows(
        self, role: str, index: BatchIndex, mine: Experience | None
    ) -> tuple[BatchIndex, Experience]:
        """Move all rows from their owners to the consumers, each to a leader of a coordinate there.

        Args:
            role: at the other end.
            index: of the rows at their owners.
            mine: the rows of this rank; None on a consumer, which has none yet.

        Returns:
            The index of the rows at the consumers, and those that this rank has as a consumer.
        """
        route = self._routes[role]
        plan = self._plan(route, index)
        moved = move_rows(route.channel, index, plan, mine)
        consumers = tuple(member - route.owners for member in plan.destinations)
        return replace(index, owners=consumers), moved

    def move_columns(self, request: MoveColumns, index: BatchIndex, mine: Experience) -> None:
        """Move columns of rows that owners and consumers both have.

        Args:
            request: which, and in which direction.
            index: of the rows at their owners.
            mine: the rows of this rank.
        """
        route = self._routes[request.role]
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


def batch_index(index: RowIndex) -> BatchIndex:
    """The index as plans are made of it."""
    return BatchIndex(
        prompt_lengths=tuple(index.prompt_lengths),
        lengths=tuple(index.lengths),
        samples=index.samples,
        owners=tuple(index.owners),
    )
