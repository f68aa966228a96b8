import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from patience import beside, end, until
from simulated_cluster import SimulatedCluster

from ppojob_operator.errors import NotLeaderError, UnavailableError
from ppojob_operator.kinds import Kind
from ppojob_operator.leadership import Leadership
from ppojob_operator.settings import Settings
from ppojob_operator.state import Manifest

pytestmark = pytest.mark.virtual_time
SECONDS = 15.0
LEASE = "team-a-ppojob-operator"


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def replica(
    cluster: SimulatedCluster, name: str, gained: list[str]
) -> AsyncIterator[tuple[Leadership, "asyncio.Task[None]"]]:
    settings = Settings(namespace="system", lease=LEASE, identity=name, lease_seconds=SECONDS)
    one = Leadership(cluster, settings, lambda: gained.append(name), now)
    async with beside(one.run()) as task:
        yield one, task


async def test_one_leads_and_the_other_follows_when_it_ends(cluster: SimulatedCluster) -> None:
    gained: list[str] = []
    async with replica(cluster, "a", gained) as (first, task):
        await until(lambda: first.is_held)
        async with replica(cluster, "b", gained) as (second, _):
            await asyncio.sleep(SECONDS)
            assert (first.is_held, second.is_held) == (True, False)
            task.cancel()
            # Given up, so there is no Lease to wait out.
            await until(lambda: second.is_held, SECONDS)
    assert gained == ["a", "b"]
    assert cluster.objects["Lease", "system", LEASE]["spec"]["leaseTransitions"] >= 2


@pytest.mark.parametrize("renewed", ["2000-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_clocks_of_machines_are_not_compared(cluster: SimulatedCluster, renewed: str) -> None:
    """A holder whose clock is years off is waited for all the same."""
    async with replica(cluster, "a", []) as (first, task):
        await until(lambda: first.is_held)
        await end(task)
    # As if it had ended without a word.
    lease = cluster.objects["Lease", "system", LEASE]
    lease["spec"] |= {"holderIdentity": "a", "renewTime": renewed}
    begun = now()
    async with replica(cluster, "b", []) as (second, _):
        await until(lambda: second.is_held)
    assert now() - begun >= SECONDS


class SlowCluster(SimulatedCluster):
    """Takes a share of the time that a Lease lasts for each answer."""

    share = 0.6
    renewals = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        self.renewals = 0
        await asyncio.sleep(0.1 * SECONDS)
        return await super().get(kind, namespace, name)

    async def replace(self, manifest: Manifest) -> Manifest:
        await asyncio.sleep(self.share * SECONDS)
        self.renewals += 1
        return await super().replace(manifest)


@pytest.mark.parametrize(
    ("share", "comes"),
    [
        # It lapses while it renews, and looks at every job again.
        (0.6, lambda _, gained: len(gained) >= 3),
        # It leads, and asks no more than it must.
        (0.5, lambda cluster, _: cluster.renewals >= 3),
    ],
)
async def test_a_leader_that_is_answered_slowly(share, comes) -> None:
    cluster, gained = SlowCluster(), list[str]()
    cluster.share = share
    async with replica(cluster, "a", gained):
        await until(lambda: comes(cluster, gained))


async def test_a_leader_that_is_cut_off_stops_before_the_other_begins(cluster) -> None:
    cut_off = SimulatedCluster()
    cut_off.objects = cluster.objects

    async def refuse(*_: object) -> object:
        raise UnavailableError("no route")

    async with replica(cut_off, "a", []) as (first, _):
        await until(lambda: first.is_held)
        async with replica(cluster, "b", []) as (second, _):
            cut_off.get = cut_off.replace = refuse  # type: ignore[method-assign,assignment]
            overlap = False
            deadline = now() + 3 * SECONDS
            while not second.is_held and now() < deadline:
                await asyncio.sleep(0.005)
                overlap = overlap or (first.is_held and second.is_held)
            assert (first.is_held, second.is_held, overlap) == (False, True, False)


async def test_what_was_read_late_was_renewed_late(cluster: SimulatedCluster) -> None:
    """The holder may have renewed while the other's first look was on its way, and then fall."""

    class LateAtFirst(SimulatedCluster):
        is_first = True

        async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
            if self.is_first:
                self.is_first = False
                await asyncio.sleep(0.75 * SECONDS)  # the holder renews three times
                found = await super().get(kind, namespace, name)
                holder.cancel()
                return found
            return await super().get(kind, namespace, name)

    late = LateAtFirst()
    late.objects = cluster.objects
    async with replica(cluster, "a", []) as (first, holder):
        # Ended without a word: as a process that is killed.
        first._release = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        await until(lambda: first.is_held)
        async with replica(late, "b", []) as (second, _):
            await until(lambda: second.is_held)
            assert not first.is_held


async def test_a_thawed_leader_may_not_write(cluster: SimulatedCluster) -> None:
    """Frozen with the Lease in hand: its clock says that the Lease is over before it writes."""
    async with replica(cluster, "a", []) as (first, task):
        await until(lambda: first.is_held)
        first.check()
        await end(task)
        await asyncio.sleep(SECONDS)
        with pytest.raises(NotLeaderError):
            first.check()
