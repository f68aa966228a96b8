"""What all tests share: no network, no more threads than asked for, no deadlines of a clock."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Compiling modules takes longer than loading them: processes of tests keep what they have compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("shared", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("shared")

if TYPE_CHECKING:
    import torch

_STARTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"})


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's `make test &` has it ignored, and what tests interrupt would be deaf as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("no_processes"):
        settings.load_profile("quick")
        sys.addaudithook(_refuse_processes)


# Libraries and thousands of tests are loaded, and live to the end: nobody looks for garbage there.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests of the cluster where all of them would be deselected."""
    chosen = config.option.markexpr.split(" and ")
    is_of_cluster = collection_path == Path(__file__).with_name("cluster")
    return True if is_of_cluster and "not cluster" in chosen else None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give workers the files with the longest limits first: none is left alone with one of them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    longest: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        seconds = limit.args[0] if limit else 0.0
        longest[item.path] = max(seconds, longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    gc.enable()  # where workers collect, nothing is collected here


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "fail a test that starts a process, and try few random examples"
    parser.addoption("--no-processes", action="store_true", help=text)


def _refuse_processes(event: str, _: tuple[object, ...]) -> None:
    if event in _STARTS and "PYTEST_CURRENT_TEST" in os.environ:
        raise RuntimeError(f"{event} in a test of make unit: mark it `processes`")


@pytest.fixture
def strict_gpu() -> "Iterator[torch.device]":
    """The first GPU, where torch computes as in a rank: the same bits each time, or it refuses."""
    import torch

    from ppojob_trainer.deterministic import make_deterministic

    device = torch.device("cuda", 0)
    was_strict = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    make_deterministic(device)
    yield device
    torch.use_deterministic_algorithms(was_strict)
    torch.utils.deterministic.fill_uninitialized_memory = fills
