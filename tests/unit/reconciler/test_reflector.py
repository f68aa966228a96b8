"""A mirror of a kind: whatever a stream does, it ends with what is there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from prometheus_client import REGISTRY

from ppojob_operator.cluster import Change, Page
from ppojob_operator.errors import (
    ClusterError,
    ExpiredError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from ppojob_operator.kinds import NODE, POD, Kind
from ppojob_operator.reflector import Reflector, Scope
from ppojob_operator.state import Manifest


def pod(uid: str, version: int = 1) -> Manifest:
    return {"kind": "Pod", "metadata": {"uid": uid, "resourceVersion": str(version)}}


class ScriptedCluster:
    """Answers each list and each watch from a script; a script that is over waits for ever."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists = lists
        self.watches = watches
        self.watched_from: list[str] = []
        self.is_over = asyncio.Event()

    async def pages(self, kind: Kind, namespace: str, selector: str) -> AsyncIterator[Page]:
        for page in self.lists.pop(0):
            if isinstance(page, ClusterError):
                raise page
            yield Page(tuple(page), "10")

    async def watch(
        self, kind: Kind, namespace: str, selector: str, resource_version: str
    ) -> AsyncIterator[Change]:
        self.watched_from.append(resource_version)
        if not self.watches:
            self.is_over.set()
            await asyncio.Event().wait()
        for change in self.watches.pop(0):
            if isinstance(change, ClusterError):
                raise change
            yield change


async def mirrored(cluster: ScriptedCluster, scope: Scope) -> tuple[list[str], list[str], bool]:
    seen: list[str] = []
    gone: list[str] = []
    reflector = Reflector(
        cluster,  # type: ignore[arg-type]
        scope,
        lambda manifest: seen.append(manifest["metadata"]["uid"]),
        gone.append,
    )
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(cluster.is_over.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return seen, gone, reflector.is_synced.is_set()


def run(
    lists: list[Any], watches: list[Any], check: Callable[[ScriptedCluster], None] = lambda _: None
) -> tuple[list[str], list[str]]:
    async def test() -> tuple[list[str], list[str]]:
        cluster = ScriptedCluster(lists, watches)
        seen, gone, is_synced = await mirrored(cluster, Scope(POD))
        assert is_synced
        check(cluster)
        return seen, gone

    return asyncio.run(test())


def lists_counted() -> float:
    return REGISTRY.get_sample_value("ppojob_operator_relists_total", {"kind": "Pod"}) or 0.0


def test_pages_then_changes() -> None:
    changes = [Change("ADDED", pod("c", 11)), Change("DELETED", pod("a", 12))]
    assert run([[[pod("a")], [pod("b")]]], [changes]) == (["a", "b", "c"], ["a"])


def test_an_expired_stream_lists_again_and_finds_what_went() -> None:
    lists = [[[pod("a"), pod("b")]], [[pod("b")]]]
    assert run(lists, [[ExpiredError("410", 410)]]) == (["a", "b", "b"], ["a"])


def test_what_went_while_a_list_broke_off_is_found_too_and_only_the_whole_one_counts() -> None:
    before = lists_counted()
    lists = [[[pod("a")], UnavailableError("500", 500)], [[pod("b")]]]
    assert run(lists, []) == (["a", "b"], ["a"])
    assert lists_counted() == before + 1


def test_a_stream_that_breaks_goes_on_from_the_last_bookmark() -> None:
    bookmark = Change("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    watches = [[bookmark, UnavailableError("stalled")], [Change("ADDED", pod("c", 51))]]

    def check(cluster: ScriptedCluster) -> None:
        assert cluster.watched_from == ["10", "50", "51"]

    assert run([[[pod("a")]]], watches, check) == (["a", "c"], [])


def test_an_overloaded_server_is_left_alone_and_asked_again() -> None:
    watches = [[UnavailableError("429", 429, 0.0)], [Change("ADDED", pod("b", 11))]]
    assert run([[[pod("a")]]], watches) == (["a", "b"], [])


def test_without_the_right_to_look_it_goes_on() -> None:
    async def test() -> None:
        cluster = ScriptedCluster([[RefusedError("403", 403)]], [])
        reflector = Reflector(
            cluster,  # type: ignore[arg-type]
            Scope(NODE, is_optional=True),
            lambda _: None,
            lambda _: None,
        )
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(reflector.is_synced.wait(), 5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(test())


def test_each_namespace_is_heard_by_itself() -> None:
    """Where one namespace answers and another does not, the silence of that one is seen."""

    def heard(namespace: str) -> float:
        name = "ppojob_operator_watch_last_heard_timestamp_seconds"
        labels = {"kind": "Pod", "watched_namespace": namespace}
        return REGISTRY.get_sample_value(name, labels) or 0.0

    async def test() -> None:
        await mirrored(ScriptedCluster([[[pod("a")]]], []), Scope(POD, "heard"))

    asyncio.run(test())
    assert heard("heard") > 0.0
    assert heard("silent") == 0.0


def told_of_service(heard: list[str | bool]) -> tuple[Callable[[bool], None], asyncio.Event]:
    """What keeps whether a kind is served, and what is set once it is not."""
    is_told = asyncio.Event()

    def served(is_served: bool) -> None:
        heard.append(is_served)
        if not is_served:
            is_told.set()

    return served, is_told


def test_what_was_refused_once_is_listed_again_and_said_to_be_served() -> None:
    async def test() -> None:
        lists = [[[pod("a"), pod("b")]], [[pod("b")]]]
        cluster = ScriptedCluster(lists, [[RefusedError("401", 401)]])
        heard: list[str | bool] = []
        served, is_told = told_of_service(heard)

        reflector = Reflector(
            cluster,  # type: ignore[arg-type]
            Scope(POD, is_optional=True),
            lambda _: None,
            heard.append,
            served,
        )
        # Run once more, it does not wait until somebody may have installed what it lacks.
        for is_reached in (is_told, cluster.is_over):
            task = asyncio.create_task(reflector.run())
            await asyncio.wait_for(is_reached.wait(), 60)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert heard == [True, False, "a", True]

    asyncio.run(test())


def test_of_what_is_not_served_any_more_it_is_said_before_its_objects_go() -> None:
    async def test() -> None:
        lists = [[[pod("a")]], [MissingError("404", 404)]]
        cluster = ScriptedCluster(lists, [[ExpiredError("410", 410)]])
        heard: list[str | bool] = []
        served, is_told = told_of_service(heard)

        scope = Scope(POD, is_optional=True)
        reflector = Reflector(
            cluster,  # type: ignore[arg-type]
            scope,
            lambda _: None,
            heard.append,
            served,
        )
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(is_told.wait(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert heard == [True, False, "a"]

    asyncio.run(test())
