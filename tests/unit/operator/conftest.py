"""Tests of the operator may be coroutines; each has a loop of its own, for a minute at most."""

import asyncio
import inspect

import pytest
from patience import VirtualLoop
from reconciler_harness import Harness
from simulated_cluster import SimulatedCluster


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    is_virtual = pyfuncitem.get_closest_marker("virtual_time")
    with asyncio.Runner(loop_factory=VirtualLoop if is_virtual else None) as runner:
        runner.run(asyncio.wait_for(pyfuncitem.obj(**given), 60))
    return True


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster()


@pytest.fixture
def harness() -> Harness:
    return Harness()
