"""Which job is looked at when."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from patience import until

from ppojob_operator.errors import UnavailableError
from ppojob_operator.job_queue import JobQueue
from ppojob_operator.reading import JobKey

A, B = ("n", "a"), ("n", "b")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


async def works(queue: JobQueue, test: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.create_task(queue.run())
    try:
        await test()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_job_is_looked_at_once_at_a_time_and_once_more_when_woken_meanwhile() -> None:
    async def test() -> None:
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

        queue = JobQueue(look, workers=4, rest_seconds=0.0)

        async def story() -> None:
            queue.wake(A)
            await asyncio.sleep(0.02)
            for _ in range(5):
                queue.wake(A)
            await asyncio.sleep(0.02)
            assert looks == [A]
            go_on.set()
            await asyncio.sleep(0.05)
            assert looks == [A, A]
            assert most == 1

        await works(queue, story)

    run(test)


def test_it_comes_again_after_the_time_it_asked_for() -> None:
    async def test() -> None:
        looks = list[JobKey]()

        async def look(key: JobKey) -> float | None:
            looks.append(key)
            return 0.02 if len(looks) < 3 else None

        queue = JobQueue(look, workers=1, rest_seconds=0.0)

        async def story() -> None:
            queue.wake(A)
            await until(lambda: len(looks) >= 3)
            await asyncio.sleep(0.1)
            assert looks == [A, A, A]

        await works(queue, story)

    run(test)


def test_one_job_that_fails_holds_up_no_other_and_is_tried_again() -> None:
    async def test() -> None:
        looks = list[JobKey]()
        problems: list[Exception] = [UnavailableError("500"), KeyError("a bug")]

        async def look(key: JobKey) -> float | None:
            looks.append(key)
            if key == A and problems:
                raise problems.pop(0)
            return None

        queue = JobQueue(look, workers=1, rest_seconds=0.0)

        async def story() -> None:
            queue.wake(A)
            queue.wake(B)
            await asyncio.sleep(0.05)
            assert looks == [A, B]
            await until(lambda: len(looks) >= 4)
            assert looks == [A, B, A, A]

        await works(queue, story)

    run(test)


def test_how_long_the_oldest_waits_is_known() -> None:
    async def look(_: JobKey) -> float | None:
        return None

    async def test() -> None:
        queue = JobQueue(look, workers=1, rest_seconds=0.0)
        assert queue.oldest_seconds == 0.0
        queue.wake(A)
        await asyncio.sleep(0.02)
        assert queue.oldest_seconds >= 0.02

    run(test)


def test_a_burst_of_events_is_one_look_more() -> None:
    async def test() -> None:
        looks = list[JobKey]()

        async def look(key: JobKey) -> float | None:
            looks.append(key)
            return None

        queue = JobQueue(look, workers=2, rest_seconds=2.0)

        async def story() -> None:
            queue.wake(A)
            for _ in range(10):
                await asyncio.sleep(0.01)
                queue.wake(A)
            queue.wake(B)
            await asyncio.sleep(0.05)
            assert looks == [A, B]
            await until(lambda: len(looks) >= 3)
            assert looks == [A, B, A]

        await works(queue, story)

    run(test)


def test_a_job_that_does_not_come_to_rest_is_left_alone_longer_each_time() -> None:
    async def test() -> None:
        looks: list[float] = []

        async def look(key: JobKey) -> float | None:
            looks.append(asyncio.get_running_loop().time())
            queue.wake(key)
            return None

        queue = JobQueue(look, workers=1, rest_seconds=0.02, longest_rest_seconds=0.08)

        async def story() -> None:
            queue.wake(A)
            await until(lambda: len(looks) >= 5)
            gaps = [later - earlier for earlier, later in itertools.pairwise(looks[:5])]
            # Timers never ring early, whatever else the machine does.
            rests = (0.02, 0.04, 0.08, 0.08)
            assert all(gap > 0.9 * rest for gap, rest in zip(gaps, rests, strict=True)), gaps

        await works(queue, story)

    run(test)
