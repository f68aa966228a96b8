import signal
import time
from collections.abc import Iterator

import pytest
import torch
from link_member import Process, Processes
from torch._C._distributed_c10d import HashStore

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.parallel.channel import open_channel

pytestmark = pytest.mark.processes

PAYLOAD_BYTES = 8_000_000
SOON_SECONDS = 30.0
"""Well below the limit after which an operation of these tests gives up by itself."""


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.end()


def open_all(
    members: list[Process], key: str, device: str = "cpu", timeout_seconds: float = 300.0
) -> None:
    options = {"key": key, "size": len(members), "device": device, "timeout": timeout_seconds}
    for number, member in enumerate(members):
        member.ask("open", member=number, **options)
    assert [member.result() for member in members] == [None] * len(members)


def exchange_all(members: list[Process], first_role: int, size: int) -> list[bool]:
    """Every rank of either role with every rank of the other."""
    numbers = range(len(members))
    for number, member in enumerate(members):
        peers = [n for n in numbers if (n < first_role) != (number < first_role)]
        member.ask("exchange", peers=peers, size=size)
    return [member.result() for member in members]


@pytest.mark.parametrize(("first_role", "second_role"), [(2, 1), (2, 2)])
def test_payloads_arrive_byte_for_byte_and_closing_gives_up_the_sockets(
    processes, first_role, second_role
):
    members = processes.start(first_role + second_role)
    members[0].ask("sockets")
    before = members[0].result()
    open_all(members, "uid/channel/a.1-b.1/0")
    for size in (PAYLOAD_BYTES, 0):
        assert exchange_all(members, first_role, size) == [True] * len(members)
    for call in ("sockets", "close", "sockets"):
        members[0].ask(call)
    during, _, after = (members[0].result() for _ in range(3))
    assert during > before
    assert after == before


def test_the_ranks_of_a_world_exchange_in_many_buckets(processes):
    members = processes.start(3)
    for number, member in enumerate(members):
        member.ask("exchange_in_world", key="world", member=number, size=3, num_bytes=20_000)
    assert [member.result() for member in members] == [True] * 3


def test_a_killed_peer_is_noticed_by_everybody_who_waits(processes):
    *waiting, peer = members = processes.start(3)
    open_all(members, "uid/channel/a.1-b.1/0")
    for member in waiting:
        member.ask("exchange", peers=[2], size=PAYLOAD_BYTES)
    time.sleep(0.3)
    peer.send_signal(signal.SIGKILL)
    for member in waiting:
        assert "uid/channel/a.1-b.1/0: lost: " in member.result(SOON_SECONDS)


def test_a_stopped_peer_is_cut_off_and_its_next_attempt_served(processes):
    first, second, peer, successor = processes.start(4)
    open_all([first, second, peer], "uid/channel/a.1-b.1/0")
    peer.send_signal(signal.SIGSTOP)
    for member in (first, second):
        member.ask("exchange", peers=[2], size=PAYLOAD_BYTES)
    for member in (first, second):
        assert member.answer(within=1) is None, "a stopped peer looks like a slow one"
    for member in (first, second):
        member.ask("cut")
    for member in (first, second):
        answers = [member.answer(SOON_SECONDS) for _ in range(2)]
        results = {answer["call"]: answer["result"] for answer in answers if answer is not None}
        assert results["cut"] is None
        assert "uid/channel/a.1-b.1/0: lost: it was cut" in results["exchange"]
        member.ask("exchange", peers=[2], size=1)
        assert "lost: " in member.result(SOON_SECONDS), "a lost channel stays lost"
    members = [first, second, successor]
    open_all(members, "uid/channel/a.1-b.2/0")
    assert exchange_all(members, 2, PAYLOAD_BYTES) == [True] * 3
    peer.send_signal(signal.SIGCONT)
    assert exchange_all(members, 2, PAYLOAD_BYTES) == [True] * 3


def test_a_peer_that_takes_no_part_ends_the_exchange_by_its_time_limit(processes):
    waiting, _ = members = processes.start(2)
    open_all(members, "uid/channel/a.1-b.1/0", timeout_seconds=3.0)
    waiting.ask("exchange", peers=[1], size=PAYLOAD_BYTES)
    assert "uid/channel/a.1-b.1/0: lost: " in waiting.result(within=60)


@pytest.mark.gpu
def test_payloads_arrive_over_nccl_and_a_stopped_peer_is_cut_off(processes):
    member, peer = members = processes.start(2)
    open_all(members, "uid/channel/a.1-b.1/0", "cuda")
    assert exchange_all(members, 1, PAYLOAD_BYTES) == [True] * 2
    peer.send_signal(signal.SIGSTOP)
    member.ask("exchange", peers=[1], size=PAYLOAD_BYTES)
    assert member.answer(within=1) is None
    member.ask("cut")
    assert any("lost: " in str(member.result(SOON_SECONDS)) for _ in range(2))


def test_opening_ends_when_the_peer_never_comes():
    start = time.monotonic()
    with pytest.raises(ChannelLost, match=r"a.1-b.1/0: lost: not opened: .+"):
        open_channel(HashStore(), "a.1-b.1/0", 0, 2, "127.0.1.20", torch.device("cpu"), 0.5)
    assert time.monotonic() - start < 60  # where torch itself would wait for minutes
