import asyncio
import itertools
import time
from collections.abc import Callable

import pytest
from patience import beside, until

from ppojob_operator.errors import UnavailableError
from ppojob_operator.job_queue import JobQueue
from ppojob_operator.reading import JobKey

pytestmark = pytest.mark.virtual_time
A, B = ("n", "a"), ("n", "b")


def queue_of(
    looks: list[JobKey], again: Callable[[JobKey], float | None], workers: int = 1
) -> JobQueue:
    """A queue whose looks are written down, and answered."""

    async def look(key: JobKey) -> float | None:
        looks.append(key)
        return again(key)

    return JobQueue(look, workers)


async def test_a_job_is_looked_at_once_at_a_time_and_once_more_when_woken_meanwhile() -> None:
    at_once, most, looks = 0, 0, list[JobKey]()
    go_on = asyncio.Event()

    async def look(key: JobKey) -> float | None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        looks.append(key)
        await go_on.wait()
        at_once -= 1
        return None

    queue = JobQueue(look, workers=4)
    async with beside(queue.run()):
        for _ in range(5):
            queue.enqueue(A)
            await asyncio.sleep(0.02)
        assert looks == [A]
        go_on.set()
        await asyncio.sleep(1.0)
        assert (looks, most) == ([A, A], 1)


async def test_it_comes_again_after_the_time_it_asked_for() -> None:
    looks: list[JobKey] = []
    queue = queue_of(looks, lambda _: 0.02 if len(looks) < 3 else None)
    async with beside(queue.run()):
        queue.enqueue(A)
        await asyncio.sleep(2.0)
        assert looks == [A, A, A]


async def test_one_job_that_fails_holds_up_no_other_and_is_tried_again() -> None:
    looks: list[JobKey] = []
    problems: list[Exception] = [UnavailableError("500"), KeyError("a bug")]

    def fail(key: JobKey) -> None:
        if key == A and problems:
            raise problems.pop(0)

    queue = queue_of(looks, fail)
    async with beside(queue.run()):
        queue.enqueue(A)
        queue.enqueue(B)
        await asyncio.sleep(0.05)
        assert looks == [A, B]
        await until(lambda: len(looks) >= 4)
        assert looks == [A, B, A, A]


async def test_how_long_the_oldest_waits_is_known() -> None:
    queue = queue_of([], lambda _: None)
    assert queue.oldest_seconds == 0.0
    queue.enqueue(A)
    time.sleep(0.02)
    assert queue.oldest_seconds >= 0.02


async def test_a_burst_of_events_is_one_look_more() -> None:
    looks: list[JobKey] = []
    queue = queue_of(looks, lambda _: None, workers=2)
    async with beside(queue.run()):
        for _ in range(10):
            queue.enqueue(A)
            await asyncio.sleep(0.01)
        queue.enqueue(B)
        await asyncio.sleep(0.05)
        assert looks == [A, B]
        await asyncio.sleep(2.0)
        assert looks == [A, B, A]


async def test_a_job_that_does_not_come_to_rest_is_left_alone_longer_each_time() -> None:
    times: list[float] = []

    def note(key: JobKey) -> None:
        times.append(asyncio.get_running_loop().time())
        queue.enqueue(key)

    queue = queue_of([], note)
    async with beside(queue.run()):
        queue.enqueue(A)
        await until(lambda: len(times) >= 6)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[:6])]
    assert gaps == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0], abs=0.05)
