"""What goes over the wire to an API server, and what its answers mean."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from ppojob_operator.connection import Connection
from ppojob_operator.errors import (
    ClusterError,
    ConflictError,
    ExpiredError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from ppojob_operator.http_cluster import HttpCluster
from ppojob_operator.kinds import CHILD_KINDS, NODE, POD

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "c", "namespace": "n"},
    "data": {"a": "1"},
}


def serve(handler: Handler, test: Callable[[HttpCluster], Awaitable[Any]], **options: Any) -> Any:
    """Run `test` against a server whose every request `handler` answers."""

    async def whole() -> Any:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        connection = Connection(f"http://{host}:{port}", None, lambda: "secret")
        try:
            async with HttpCluster(connection, **options) as cluster:
                return await test(cluster)
        finally:
            await runner.cleanup()

    return asyncio.run(whole())


def failing(status: int, headers: dict[str, str] | None = None) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"message": "why"}, status=status, headers=headers)

    return handler


def test_apply_is_server_side_forced_and_for_one_uid() -> None:
    seen: dict[str, Any] = {}

    async def handler(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        seen.update(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            type=request.headers["Content-Type"],
            token=request.headers["Authorization"],
            uid=body["metadata"]["uid"],
        )
        return web.json_response(body)

    serve(handler, lambda cluster: cluster.apply(CONFIG, "u1"))
    assert seen == {
        "method": "PATCH",
        "path": "/api/v1/namespaces/n/configmaps/c",
        "query": {"fieldManager": "ppojob-operator", "force": "true"},
        "type": "application/apply-patch+yaml",
        "token": "Bearer secret",
        "uid": "u1",
    }


def test_a_forced_deletion_waits_for_no_node() -> None:
    seen: dict[str, Any] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(json.loads(await request.read()))
        return web.json_response({})

    serve(handler, lambda cluster: cluster.delete(POD, "n", "p", "u1", 0))
    assert seen["gracePeriodSeconds"] == 0
    assert seen["preconditions"] == {"uid": "u1"}
    assert seen["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, RefusedError),
        (404, MissingError),
        (409, ConflictError),
        (410, ExpiredError),
        (422, RefusedError),
        (429, UnavailableError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
def test_a_status_is_an_error_of_its_kind(status: int, error: type[ClusterError]) -> None:
    with pytest.raises(error, match="why") as raised:
        serve(failing(status), lambda cluster: cluster.create(CONFIG))
    assert raised.value.status == status


def test_a_server_says_how_long_to_wait() -> None:
    with pytest.raises(UnavailableError) as raised:
        serve(failing(429, {"Retry-After": "7"}), lambda cluster: cluster.create(CONFIG))
    assert raised.value.retry_after == 7.0


def test_no_answer_is_unavailable() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with pytest.raises(UnavailableError):
        serve(handler, lambda cluster: cluster.get(CHILD_KINDS["ConfigMap"], "n", "c"))


def test_a_list_comes_page_by_page() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "a"
        page = request.query.get("continue", "")
        answer = {
            "metadata": {"resourceVersion": "5", "continue": "" if page else "next"},
            "items": [{"metadata": {"name": page or "first"}}],
        }
        return web.json_response(answer)

    async def test(cluster: HttpCluster) -> list[str]:
        pages = [page async for page in cluster.pages(POD, "", "a")]
        return [item["metadata"]["name"] for page in pages for item in page.items]

    assert serve(handler, test) == ["first", "next"]


def stream(lines: list[dict[str, Any]], *, stalls: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(json.dumps(line).encode() + b"\n")
        if stalls:
            await asyncio.sleep(30)
        return response

    return handler


async def watched(cluster: HttpCluster) -> list[str]:
    return [change.type async for change in cluster.watch(NODE, "", "", "5")]


def test_a_watch_is_a_line_an_event_however_long() -> None:
    large = {"metadata": {"annotations": {"a": "x" * 300_000}}}
    lines = [{"type": "ADDED", "object": large}, {"type": "BOOKMARK", "object": {}}]
    assert serve(stream(lines), watched) == ["ADDED", "BOOKMARK"]


@pytest.mark.parametrize(("code", "error"), [(410, ExpiredError), (500, UnavailableError)])
def test_an_error_event_is_an_error(code: int, error: type[ClusterError]) -> None:
    lines = [{"type": "ERROR", "object": {"code": code, "message": "why"}}]
    with pytest.raises(error):
        serve(stream(lines), watched)


def test_a_watch_that_says_nothing_is_broken_off() -> None:
    with pytest.raises(UnavailableError):
        serve(stream([], stalls=True), watched, stall_seconds=0.2)
