import signal
from collections.abc import Iterator

import pytest

from ppojob_cli.run import Interrupts

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = {number: signal.getsignal(number) for number in ASKING}
    yield Interrupts()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_or_a_service_manager_asks_however_often(
    number: signal.Signals, interrupts: Interrupts
) -> None:
    for _ in range(3):
        signal.raise_signal(number)
        assert interrupts.count == 1


@pytest.mark.parametrize("first", ASKING)
def test_ctrl_c_insists_on_what_was_asked(first: signal.Signals, interrupts: Interrupts) -> None:
    signal.raise_signal(first)
    signal.raise_signal(signal.SIGINT)
    assert interrupts.count == 2
