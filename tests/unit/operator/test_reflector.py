import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from patience import beside
from prometheus_client import REGISTRY

from ppojob_operator import errors
from ppojob_operator.cluster import Change, Page
from ppojob_operator.kinds import NODE, POD, Kind
from ppojob_operator.reflector import Reflector
from ppojob_operator.state import Manifest


def pod(uid: str, version: int = 1) -> Manifest:
    return {"kind": "Pod", "metadata": {"uid": uid, "resourceVersion": str(version)}}


class ScriptedCluster:
    """Answers each list and each watch from a script; a script that is over waits for ever."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists = lists
        self.watches = watches
        self.watched_from: list[str] = []
        self.seen: list[str] = []
        self.gone: list[str | bool] = []
        self.is_over = asyncio.Event()

    async def pages(self, kind: Kind, namespace: str, selector: str) -> AsyncIterator[Page]:
        for page in self.lists.pop(0):
            if isinstance(page, errors.ClusterError):
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
            if isinstance(change, errors.ClusterError):
                raise change
            yield change

    def reflector(self, kind: Kind = POD, **options: Any) -> Reflector:
        def see(manifest: Manifest) -> None:
            self.seen.append(manifest["metadata"]["uid"])

        return Reflector(self, kind, see, self.gone.append, **options)  # type: ignore[arg-type]


async def mirrored(lists: list[Any], watches: list[Any], **options: Any) -> ScriptedCluster:
    """The cluster and what was seen of it, once all of the script has happened."""
    cluster = ScriptedCluster(lists, watches)
    reflector = cluster.reflector(**options)
    async with beside(reflector.run()):
        await cluster.is_over.wait()
    assert reflector.is_synced.is_set()
    return cluster


def lists_counted() -> float:
    return REGISTRY.get_sample_value("ppojob_operator_relists_total", {"kind": "Pod"}) or 0.0


@pytest.mark.parametrize(
    ("lists", "watches", "seen", "gone"),
    [
        (
            [[[pod("a")], [pod("b")]]],
            [[Change("ADDED", pod("c", 11)), Change("DELETED", pod("a", 12))]],
            ["a", "b", "c"],
            ["a"],
        ),
        # An expired stream: it lists again and finds what went.
        (
            [[[pod("a"), pod("b")]], [[pod("b")]]],
            [[errors.ExpiredError("410", 410)]],
            ["a", "b", "b"],
            ["a"],
        ),
        # An overloaded server is left alone and asked again.
        (
            [[[pod("a")]]],
            [[errors.UnavailableError("429", 429, 0.0)], [Change("ADDED", pod("b", 11))]],
            ["a", "b"],
            [],
        ),
    ],
)
async def test_whatever_a_stream_does_it_ends_with_what_is_there(lists, watches, seen, gone):
    cluster = await mirrored(lists, watches)
    assert (cluster.seen, cluster.gone) == (seen, gone)


async def test_what_went_while_a_list_broke_off_is_found_too_and_only_the_whole_one_counts():
    before = lists_counted()
    cluster = await mirrored([[[pod("a")], errors.UnavailableError("500", 500)], [[pod("b")]]], [])
    assert (cluster.seen, cluster.gone) == (["a", "b"], ["a"])
    assert lists_counted() == before + 1


async def test_a_stream_that_breaks_goes_on_from_the_last_bookmark() -> None:
    bookmark = Change("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    watches = [[bookmark, errors.UnavailableError("stalled")], [Change("ADDED", pod("c", 51))]]
    cluster = await mirrored([[[pod("a")]]], watches)
    assert cluster.watched_from == ["10", "50", "51"]
    assert (cluster.seen, cluster.gone) == (["a", "c"], [])


async def test_without_the_right_to_look_it_goes_on() -> None:
    cluster = ScriptedCluster([[errors.RefusedError("403", 403)]], [])
    reflector = cluster.reflector(NODE, is_optional=True)
    async with beside(reflector.run()):
        await reflector.is_synced.wait()


async def test_each_namespace_is_heard_by_itself() -> None:
    """Where one namespace answers and another does not, the silence of that one is seen."""

    def heard(namespace: str) -> float:
        name = "ppojob_operator_watch_last_heard_timestamp_seconds"
        labels = {"kind": "Pod", "watched_namespace": namespace}
        return REGISTRY.get_sample_value(name, labels) or 0.0

    await mirrored([[[pod("a")]]], [], namespace="heard")
    assert heard("heard") > 0.0
    assert heard("silent") == 0.0


@pytest.mark.parametrize(
    ("lists", "watch_error", "again", "told"),
    [
        # What was refused once is listed again and said to be served.
        (
            [[[pod("a"), pod("b")]], [[pod("b")]]],
            errors.RefusedError("401", 401),
            True,
            [True, False, "a", True],
        ),
        # Of what is not served any more it is said before its objects go.
        (
            [[[pod("a")]], [errors.MissingError("404", 404)]],
            errors.ExpiredError("410", 410),
            False,
            [True, False, "a"],
        ),
    ],
)
async def test_whether_a_kind_is_served_is_told(lists, watch_error, again, told) -> None:
    cluster, is_told = ScriptedCluster(lists, [[watch_error]]), asyncio.Event()

    def served(is_served: bool) -> None:
        cluster.gone.append(is_served)
        if not is_served:
            is_told.set()

    reflector = cluster.reflector(is_optional=True, on_served=served)
    async with beside(reflector.run()):
        await is_told.wait()
    if again:
        # Run once more, it does not wait until somebody may have installed what it lacks.
        async with beside(reflector.run()):
            await cluster.is_over.wait()
    assert cluster.gone == told
