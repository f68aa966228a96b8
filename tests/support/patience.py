"""Waiting for what others do, and tasks beside a test."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest


def eventually(holds: Callable[[], bool], seconds: float = 60.0, pause: float = 0.05) -> None:
    """Wait until something holds; fail where it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not so after {seconds} s")
        time.sleep(pause)


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let other tasks go on until something holds; fail where it does not in time."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it is over."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, Any]) -> AsyncIterator["asyncio.Task[Any]"]:
    """Have something run beside a block, and end with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await end(task)
