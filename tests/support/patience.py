"""Waiting for what others do, and tasks beside a test."""

import asyncio
import selectors
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


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on where nothing else is to be done."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def skip(self, seconds: float) -> None:
        """Set the clock on."""
        self._now += seconds


class _Impatient(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no time is waited for
            return super().select()
        ready = super().select(0)
        if not ready:
            self._loop.skip(timeout)
        return ready
