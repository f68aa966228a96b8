"""Two replicas and one Lease."""

import asyncio
import contextlib
import copy
import dataclasses
import time
from collections.abc import AsyncIterator, Callable

import pytest
from operator_jobs import job_manifest
from patience import until
from simulated_cluster import SimulatedCluster

from ppojob_operator.errors import NotLeaderError, UnavailableError
from ppojob_operator.kinds import Kind
from ppojob_operator.leadership import FencedCluster, Leadership
from ppojob_operator.settings import Settings
from ppojob_operator.state import Manifest

SECONDS = 0.6


def settings_of(name: str, lease: str = "ppojob-operator") -> Settings:
    return Settings(namespace="system", lease=lease, identity=name, lease_seconds=SECONDS)


@contextlib.asynccontextmanager
async def replica(
    cluster: SimulatedCluster, name: str, gained: list[str], lease: str = "ppojob-operator"
) -> AsyncIterator[tuple[Leadership, "asyncio.Task[None]"]]:
    one = Leadership(cluster, settings_of(name, lease), lambda: gained.append(name))
    task = asyncio.create_task(one.run())
    try:
        yield one, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_one_leads_and_the_other_follows_when_it_ends() -> None:
    async def test() -> None:
        cluster, gained = SimulatedCluster(), list[str]()
        async with replica(cluster, "a", gained) as (first, task):
            await until(lambda: first.is_held)
            async with replica(cluster, "b", gained) as (second, _):
                await asyncio.sleep(SECONDS)
                assert (first.is_held, second.is_held) == (True, False)
                task.cancel()
                # Given up, so there is no Lease to wait out.
                await until(lambda: second.is_held, SECONDS)
        assert gained == ["a", "b"]
        lease = cluster.objects["Lease", "system", "ppojob-operator"]
        assert lease["spec"]["leaseTransitions"] >= 2

    asyncio.run(test())


@pytest.mark.parametrize("renewed", ["2000-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
def test_clocks_of_machines_are_not_compared(renewed: str) -> None:
    """Case 107 of the catalogue: a holder whose clock is years off is waited for all the same."""

    async def test() -> None:
        cluster, gained = SimulatedCluster(), list[str]()
        async with replica(cluster, "a", gained) as (first, task):
            await until(lambda: first.is_held)
            await replaced(task, cluster, renewed)
        begun = time.monotonic()
        async with replica(cluster, "b", gained) as (second, _):
            await until(lambda: second.is_held)
        assert time.monotonic() - begun >= SECONDS

    asyncio.run(test())


async def replaced(task: "asyncio.Task[None]", cluster: SimulatedCluster, renewed: str) -> None:
    """End a leader without a word, and leave its Lease with this time."""
    lease = copy.deepcopy(cluster.objects["Lease", "system", "ppojob-operator"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    lease["spec"] |= {"holderIdentity": "a", "renewTime": renewed}
    version = cluster.objects["Lease", "system", "ppojob-operator"]["metadata"]["resourceVersion"]
    lease["metadata"]["resourceVersion"] = version
    await cluster.replace(lease)


class SlowCluster(SimulatedCluster):
    """Takes a share of the time that a Lease lasts for each answer."""

    seconds = 2.0
    share = 0.6
    renewals = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        self.renewals = 0
        await asyncio.sleep(0.1 * self.seconds)
        return await super().get(kind, namespace, name)

    async def replace(self, manifest: Manifest) -> Manifest:
        await asyncio.sleep(self.share * self.seconds)
        self.renewals += 1
        return await super().replace(manifest)


def test_two_releases_in_one_namespace_both_lead() -> None:
    """Each serves namespaces of its own, so they share no Lease."""

    async def test() -> None:
        cluster, gained = SimulatedCluster(), list[str]()
        async with (
            replica(cluster, "a", gained, "team-a-ppojob-operator") as (one, _),
            replica(cluster, "b", gained, "team-b-ppojob-operator") as (other, _),
        ):
            await until(lambda: one.is_held and other.is_held)
        assert sorted(gained) == ["a", "b"]

    asyncio.run(test())


async def led(cluster: SlowCluster, claim: Callable[[list[str]], bool]) -> None:
    """Lead until something holds of how often the Lease was gained."""
    gained = list[str]()
    settings = dataclasses.replace(settings_of("a"), lease_seconds=cluster.seconds)
    leader = Leadership(cluster, settings, lambda: gained.append("a"))
    task = asyncio.create_task(leader.run())
    await until(lambda: claim(gained))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_leader_that_lapsed_while_it_renewed_looks_at_every_job_again() -> None:
    asyncio.run(led(SlowCluster(), lambda gained: len(gained) >= 3))


def test_whoever_is_answered_in_half_the_time_of_a_lease_leads_and_asks_no_more_than_it_must() -> (
    None
):
    cluster = SlowCluster()
    cluster.share = 0.5
    asyncio.run(led(cluster, lambda _: cluster.renewals >= 3))


def test_a_leader_that_is_cut_off_stops_before_the_other_begins() -> None:
    async def test() -> None:
        cluster, gained = SimulatedCluster(), list[str]()
        cut_off = SimulatedCluster()
        cut_off.objects = cluster.objects

        async def refuse(*_: object) -> object:
            raise UnavailableError("no route")

        async with replica(cut_off, "a", gained) as (first, _):
            await until(lambda: first.is_held)
            async with replica(cluster, "b", gained) as (second, _):
                cut_off.get = cut_off.replace = refuse  # type: ignore[method-assign,assignment]
                overlap = False
                deadline = time.monotonic() + 5
                while not second.is_held and time.monotonic() < deadline:
                    await asyncio.sleep(0.005)
                    overlap = overlap or (first.is_held and second.is_held)
                assert second.is_held
                assert not overlap
                assert not first.is_held

    asyncio.run(test())


def test_what_was_read_late_was_renewed_late() -> None:
    """The holder may have renewed while the other's first look was on its way, and then fall."""

    class LateAtFirst(SimulatedCluster):
        is_first = True

        async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
            if self.is_first:
                self.is_first = False
                await asyncio.sleep(0.75 * SECONDS)
                found = await super().get(kind, namespace, name)
                holder.cancel()
                return found
            return await super().get(kind, namespace, name)

    async def test() -> None:
        nonlocal holder
        cluster, late = SimulatedCluster(), LateAtFirst()
        late.objects = cluster.objects
        first = Leadership(cluster, settings_of("a"), lambda: None)
        # Ended without a word: as a process that is killed.
        first._release = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        holder = asyncio.create_task(first.run())
        await until(lambda: first.is_held)
        async with replica(late, "b", []) as (second, _):
            await until(lambda: second.is_held)
            assert not first.is_held
        holder.cancel()

    holder: asyncio.Task[None]
    asyncio.run(test())


def test_a_thawed_leader_writes_nothing() -> None:
    """Frozen with the Lease in hand: its clock says that the Lease is over before it writes."""

    async def test() -> None:
        cluster = SimulatedCluster()
        async with replica(cluster, "a", []) as (first, task):
            await until(lambda: first.is_held)
            task.cancel()
            fenced = FencedCluster(cluster, first)
            await asyncio.gather(task, return_exceptions=True)
            time.sleep(SECONDS)
            with pytest.raises(NotLeaderError):
                await fenced.create(job_manifest())
            assert not cluster.of("PPOJob")

    asyncio.run(test())
