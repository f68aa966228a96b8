"""What a controller's supervisor says, and what is made of it."""

import asyncio
import datetime
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ppojob_operator.state import ControllerReport, Pod
from ppojob_operator.supervisor import controller_report

POD = Pod(
    "lab",
    "sum-controller-0",
    "u",
    "j",
    "controller",
    datetime.datetime.now(datetime.UTC),
    phase="Running",
    address="127.0.0.1",
)


def asked(answer: web.Response | None) -> ControllerReport | None:
    """Ask a supervisor that answers so; None: nobody is there."""

    async def handler(_: web.Request) -> web.Response:
        assert answer is not None
        return answer

    async def test() -> ControllerReport | None:
        application = web.Application()
        application.router.add_get("/status", handler)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        if answer is None:
            await runner.cleanup()
        try:
            async with aiohttp.ClientSession() as session:
                return await controller_report(session, POD, port)
        finally:
            await runner.cleanup()

    return asyncio.run(test())


def said(**fields: Any) -> web.Response:
    """As `ppojob_trainer.supervisor.health` writes it."""
    whole = {"role": "controller", "pod": 0, "epoch": 1, "ranks": [], "restarts": 0, **fields}
    return web.Response(text=json.dumps(whole), content_type="application/json")


def test_how_it_ended() -> None:
    report = asked(said(phase="done", reason="no\x1b row", exit_code=2))
    assert report == ControllerReport("u", "done", "no? row", 2)


def test_that_it_runs() -> None:
    assert asked(said(phase="ready", reason="", exit_code=None)) == ControllerReport("u", "ready")


@pytest.mark.parametrize(
    "answer", [None, web.Response(status=500), web.Response(text="{"), web.Response(text="[]")]
)
def test_what_is_no_answer(answer: web.Response | None) -> None:
    assert asked(answer) is None
