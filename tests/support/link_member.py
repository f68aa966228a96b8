"""Rank processes for the tests of links: calls go in, answers come out, as JSON.

Calls run on a process's main thread in order, but `cut`, which its control thread runs at once. The
processes are forked from one that has imported torch already, which takes seconds.
"""

import ctypes
import json
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import one_gpu
import torch
import torch.distributed as dist  # noqa: TID251  the world that a link is tested over

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.parallel.channel import Channel, open_channel
from ppojob_trainer.parallel.link import Link
from ppojob_trainer.parallel.world import POD_GLOO, gloo_options

CPU = torch.device("cpu")


def payload(source: int, destination: int, size: int) -> torch.Tensor:
    """Bytes that nobody else sends; sizes differ from pair to pair."""
    generator = torch.Generator().manual_seed(100 * source + destination)
    size += 10 * source + destination
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


class Member:
    def __init__(self, host: str, port: int, address: str) -> None:
        self.store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
        self.address = address
        self.channel: Channel | None = None

    def open(self, key: str, member: int, size: int, device: str, timeout: float) -> None:
        chosen = CPU
        if device == "cuda":
            one_gpu.become_a_host()
            chosen = torch.device("cuda", member % torch.cuda.device_count())
            torch.cuda.set_device(chosen)
        self.channel = open_channel(self.store, key, member, size, self.address, chosen, timeout)

    def close(self) -> None:
        self.channel.close()

    def cut(self) -> None:
        self.channel.cut()

    def exchange(self, peers: list[int], size: int) -> bool:
        """Whether the right bytes come from all peers."""
        return exchange(self.channel, peers, size)

    def sockets(self) -> int:
        return sum(
            link.startswith("socket:") for link in map(readlink, os.listdir("/proc/self/fd"))
        )

    def exchange_in_world(self, key: str, member: int, size: int, num_bytes: int) -> bool:
        """The same over a world, in many buckets."""
        options = gloo_options(self.address, 10.0)
        store = dist.PrefixStore(key, self.store)
        dist.init_process_group(
            POD_GLOO, store=store, rank=member, world_size=size, pg_options=options
        )
        link = Link(dist.group.WORLD, CPU, bucket_bytes=1000)
        try:
            return exchange(link, [m for m in range(size) if m != member], num_bytes)
        finally:
            dist.destroy_process_group()


def exchange(link: Link, peers: Iterable[int], size: int) -> bool:
    expected = {m: payload(m, link.member, size) for m in peers}
    outgoing = {m: payload(link.member, m, size) for m in peers}
    received = link.exchange(outgoing, {m: len(expected[m]) for m in peers})
    return all(torch.equal(received[m], expected[m]) for m in peers)


def readlink(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""  # the descriptor of the listing itself


def serve(connection: Connection, host: str, port: int, address: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the tests
    torch.set_num_threads(1)
    calls: queue.Queue[dict[str, Any]] = queue.Queue()
    member = Member(host, port, address)

    def answer(call: dict[str, Any]) -> None:
        try:
            result = getattr(member, call["name"])(**call["arguments"])
        except ChannelLost as error:
            result = f"ChannelLost: {error}"
        connection.send_bytes(json.dumps({"call": call["name"], "result": result}).encode())

    def control() -> None:
        while True:
            call = json.loads(connection.recv_bytes())
            if call["name"] == "cut":
                answer(call)
            else:
                calls.put(call)

    threading.Thread(target=control, daemon=True).start()
    while True:
        answer(calls.get())


def forks() -> ForkServerContext:
    """A server for the processes of all tests here: it loads for good what its first user asks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ppojob_trainer.workers.row_channels"])
    return context


class Process:
    """The tests' side of a rank process."""

    def __init__(self, port: int, address: str) -> None:
        context = forks()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, "127.0.0.1", port, address))
        self._process.start()
        theirs.close()

    def ask(self, call: str, /, **arguments: Any) -> None:
        self._connection.send_bytes(json.dumps({"name": call, "arguments": arguments}).encode())

    def answer(self, within: float = 40.0) -> dict[str, Any] | None:
        """The next answer, which names its call; None where there is none in time."""
        if not self._connection.poll(within):
            return None
        return json.loads(self._connection.recv_bytes())

    def result(self, within: float = 40.0) -> Any:
        answer = self.answer(within)
        assert answer is not None, f"no answer within {within} s"
        return answer["result"]

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()


class Processes:
    """A store, and processes that know it, each at an address of its own."""

    def __init__(self) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._processes: list[Process] = []

    def start(self, count: int) -> list[Process]:
        first = 20 + len(self._processes)
        started = [Process(self._store.port, f"127.0.1.{first + i}") for i in range(count)]
        self._processes += started
        return started

    def end(self) -> None:
        for process in self._processes:
            process.end()
