import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from operator_plans import pod

from ppojob_operator import errors
from ppojob_operator.cluster import Cluster
from ppojob_operator.connection import Connection
from ppojob_operator.kinds import CHILD_KINDS, NODE, POD
from ppojob_operator.state import ControllerReport
from ppojob_operator.supervisor import controller_report

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "c", "namespace": "n"},
    "data": {"a": "1"},
}


@contextlib.asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    """A server whose every request `handler` answers; its port."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def served(handler: Handler, **options: Any) -> AsyncIterator[Cluster]:
    """The API server that `handler` is."""
    async with server(handler) as port:
        connection = Connection(f"http://127.0.0.1:{port}", None, lambda: "secret")
        async with Cluster(connection, **options) as cluster:
            yield cluster


async def test_apply_is_server_side_forced_and_for_one_uid() -> None:
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

    async with served(handler) as cluster:
        await cluster.apply(CONFIG, "u1")
    assert seen == {
        "method": "PATCH",
        "path": "/api/v1/namespaces/n/configmaps/c",
        "query": {"fieldManager": "ppojob-operator", "force": "true"},
        "type": "application/apply-patch+yaml",
        "token": "Bearer secret",
        "uid": "u1",
    }


async def test_a_forced_deletion_waits_for_no_node() -> None:
    seen: dict[str, Any] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(json.loads(await request.read()))
        return web.json_response({})

    async with served(handler) as cluster:
        await cluster.delete(POD, "n", "p", "u1", 0)
    assert seen["gracePeriodSeconds"] == 0
    assert seen["preconditions"] == {"uid": "u1"}
    assert seen["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, errors.RefusedError),
        (404, errors.MissingError),
        (409, errors.ConflictError),
        (410, errors.ExpiredError),
        (422, errors.RefusedError),
        (429, errors.UnavailableError),
        (500, errors.UnavailableError),
        (503, errors.UnavailableError),
    ],
)
async def test_a_status_is_an_error_of_its_kind(
    status: int, error: type[errors.ClusterError]
) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"message": "why"}, status=status, headers={"Retry-After": "7"})

    async with served(handler) as cluster:
        with pytest.raises(error, match="why") as raised:
            await cluster.create(CONFIG)
    assert raised.value.status == status
    if isinstance(raised.value, errors.UnavailableError):
        assert raised.value.retry_after == 7.0


async def test_no_answer_is_unavailable() -> None:
    async def handler(request: web.Request) -> web.Response:
        request.transport.close()
        return web.Response()

    async with served(handler) as cluster:
        with pytest.raises(errors.UnavailableError):
            await cluster.get(CHILD_KINDS["ConfigMap"], "n", "c")


async def test_a_fence_stands_before_writes_alone() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.method == "GET", "nothing is written"
        return web.json_response(CONFIG)

    def closed() -> None:
        raise errors.NotLeaderError("closed")

    async with served(handler) as cluster:
        fenced = cluster.fenced(closed)
        assert await fenced.get(CHILD_KINDS["ConfigMap"], "n", "c") == CONFIG
        for write in (
            fenced.create(CONFIG),
            fenced.apply(CONFIG, "u1"),
            fenced.apply_status(CONFIG),
            fenced.replace(CONFIG),
            fenced.delete(POD, "n", "p", "u1"),
        ):
            with pytest.raises(errors.NotLeaderError):
                await write


async def test_a_list_comes_page_by_page() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "a"
        page = request.query.get("continue", "")
        answer = {
            "metadata": {"resourceVersion": "5", "continue": "" if page else "next"},
            "items": [{"metadata": {"name": page or "first"}}],
        }
        return web.json_response(answer)

    async with served(handler) as cluster:
        pages = [page async for page in cluster.pages(POD, "", "a")]
    assert [item["metadata"]["name"] for page in pages for item in page.items] == ["first", "next"]


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


async def watched(handler: Handler, **options: Any) -> list[str]:
    async with served(handler, **options) as cluster:
        return [change.type async for change in cluster.watch(NODE, "", "", "5")]


async def test_a_watch_is_a_line_an_event_however_long() -> None:
    large = {"metadata": {"annotations": {"a": "x" * 300_000}}}
    lines = [{"type": "ADDED", "object": large}, {"type": "BOOKMARK", "object": {}}]
    assert await watched(stream(lines)) == ["ADDED", "BOOKMARK"]


@pytest.mark.parametrize(
    ("code", "error"), [(410, errors.ExpiredError), (500, errors.UnavailableError)]
)
async def test_an_error_event_is_an_error(code: int, error: type[errors.ClusterError]) -> None:
    with pytest.raises(error):
        await watched(stream([{"type": "ERROR", "object": {"code": code, "message": "why"}}]))


async def test_a_watch_that_says_nothing_is_broken_off() -> None:
    with pytest.raises(errors.UnavailableError):
        await watched(stream([], stalls=True), stall_seconds=0.2)


CONTROLLER = pod("sum-controller-0", phase="Running", address="127.0.0.1")


async def asked(answer: web.Response | None) -> ControllerReport | None:
    """Ask a supervisor that answers so; None: nobody is there."""

    async def handler(_: web.Request) -> web.Response:
        return answer

    async with server(handler) as port, aiohttp.ClientSession() as session:
        return await controller_report(session, CONTROLLER, port if answer else 1)


def said(**fields: Any) -> web.Response:
    """As `ppojob_trainer.supervisor.health` writes it."""
    whole = {"role": "controller", "pod": 0, "attempt": 1, "ranks": [], "restarts": 0, **fields}
    return web.Response(text=json.dumps(whole), content_type="application/json")


async def test_how_it_ended_or_that_it_runs() -> None:
    ended = await asked(said(phase="done", reason="no\x1b row", exit_code=2))
    assert ended == ControllerReport("uid-sum-controller-0", "done", "no? row", 2)
    runs = await asked(said(phase="ready", reason="", exit_code=None))
    assert runs == ControllerReport("uid-sum-controller-0", "ready")


@pytest.mark.parametrize("answer", [None, (500, ""), (200, "{"), (200, "[]")])
async def test_what_is_no_answer(answer: tuple[int, str] | None) -> None:
    response = answer and web.Response(status=answer[0], text=answer[1])
    assert await asked(response or None) is None
