"""Waits for what other tasks of a test do."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let other tasks go on until something holds; fail where it does not in time."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
