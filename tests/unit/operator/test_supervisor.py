"""What a controller's supervisor says, and what is made of it."""

import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from operator_plans import pod

from ppojob_operator.state import ControllerReport
from ppojob_operator.supervisor import controller_report

POD = pod("sum-controller-0", phase="Running", address="127.0.0.1")


async def asked(answer: web.Response | None) -> ControllerReport | None:
    """Ask a supervisor that answers so; None: nobody is there."""

    async def handler(_: web.Request) -> web.Response:
        return answer

    application = web.Application()
    application.router.add_get("/status", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    if answer is None:
        await runner.cleanup()
    async with aiohttp.ClientSession() as session:
        report = await controller_report(session, POD, port)
    await runner.cleanup()
    return report


def said(**fields: Any) -> web.Response:
    """As `ppojob_trainer.supervisor.health` writes it."""
    whole = {"role": "controller", "pod": 0, "epoch": 1, "ranks": [], "restarts": 0, **fields}
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
