"""Round trip of the control RPC between two processes, beside that of bare ZeroMQ.

    python benchmarks/rpc_round_trip.py [--calls 3000]

Four echoes take turns, so that all of them see the same machine: bare ZeroMQ, the same with CURVE,
a question (answered by the thread that listens) and work (done by the main thread under a request
id, its answer kept). Prints one JSON object: p50 and p99 of each in microseconds, and how many
times a bare round trip with CURVE the two of ours take.
"""

import argparse
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import zmq

from ppojob_trainer.rpc.client import Call, Caller, Peer
from ppojob_trainer.rpc.keys import KeyRing, read_key_ring, write_key_folders
from ppojob_trainer.rpc.methods import Method
from ppojob_trainer.rpc.server import Route, RpcServer
from ppojob_trainer.rpc.wire import Nothing, RequestId

ADDRESS, PORT, BARE_PORT, CURVE_PORT = "127.0.0.1", 17_431, 17_432, 17_433
CALLER, SERVER = "controller", "actorRollout"
CALLS_IN_A_TURN = 100
# Ours are of this size too, a header and a body.
FRAMES = (b"h" * 24, b"b" * 16)

Echo = Callable[[int], object]


class Work(msgspec.Struct, frozen=True):
    items: list[int]


class Done(msgspec.Struct, frozen=True):
    count: int


WORK = Method("work", Work, Done)
PING = Method("ping", Nothing, Nothing, once=False)


def serve(ring: KeyRing) -> None:
    """Answer our calls until killed."""
    routes = [
        Route(PING, lambda _: Nothing()),
        Route(WORK, lambda request: Done(len(request.items))),
    ]
    server = RpcServer(ADDRESS, PORT, ring, routes, attempt=1)
    server.start()
    server.work()


def serve_bare(port: int, secret: bytes | None) -> None:
    """Send back what comes until killed."""
    socket = zmq.Context().socket(zmq.ROUTER)
    if secret is not None:
        socket.curve_server = True
        socket.curve_secretkey = secret
    socket.bind(f"tcp://{ADDRESS}:{port}")
    while True:
        socket.send_multipart(socket.recv_multipart())


@contextlib.contextmanager
def bare_echo(port: int, ring: KeyRing | None) -> Iterator[Echo]:
    """One message there and back, and nothing else."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if ring is not None:
            socket.curve_publickey = ring.public[CALLER]
            socket.curve_secretkey = ring.secret
            socket.curve_serverkey = ring.public[SERVER]
        socket.connect(f"tcp://{ADDRESS}:{port}")

        def echo(_number: int) -> None:
            socket.send_multipart(FRAMES)
            socket.recv_multipart()

        yield echo


@contextlib.contextmanager
def running(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    """A process that serves while the block runs."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def in_turns(calls: int, echoes: dict[str, Echo]) -> dict[str, list[float]]:
    """Sorted microseconds of each echo; its first turn is for warming up."""
    taken: dict[str, list[float]] = {name: [] for name in echoes}
    for first in range(0, calls + CALLS_IN_A_TURN, CALLS_IN_A_TURN):
        for name, echo in echoes.items():
            for number in range(first, first + CALLS_IN_A_TURN):
                began = time.perf_counter()
                echo(number)
                taken[name].append((time.perf_counter() - began) * 1e6)
    return {name: sorted(times[CALLS_IN_A_TURN:]) for name, times in taken.items()}


def measure(calls: int) -> dict[str, float]:
    """Start the servers, call them, end them."""
    with contextlib.ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys"
        write_key_folders(keys, (CALLER, SERVER))
        ours, theirs = (read_key_ring(keys / role, role) for role in (CALLER, SERVER))
        stack.enter_context(running(serve, theirs))
        stack.enter_context(running(serve_bare, BARE_PORT, None))
        stack.enter_context(running(serve_bare, CURVE_PORT, theirs.secret))
        caller = stack.enter_context(contextlib.closing(Caller(ours, attempt=1)))
        peer = Peer("rank 0", ADDRESS, PORT, SERVER)

        def ask(_number: int) -> Nothing:
            return caller.call(Call(peer, PING, Nothing()))

        def work(number: int) -> Done:
            return caller.call(Call(peer, WORK, Work([0, 1, 2]), RequestId(1, number, "work")))

        echoes: dict[str, Echo] = {
            "bare": stack.enter_context(bare_echo(BARE_PORT, None)),
            "bare_curve": stack.enter_context(bare_echo(CURVE_PORT, ours)),
            "question": ask,
            "work": work,
        }
        taken = in_turns(calls, echoes)
    figures = {}
    for name, times in taken.items():
        figures[f"{name}_p50_us"] = times[len(times) // 2]
        figures[f"{name}_p99_us"] = times[int(0.99 * len(times))]
    for name in ("question", "work"):
        ratio = figures[f"{name}_p50_us"] / figures["bare_curve_p50_us"]
        figures[f"{name}_over_bare_curve"] = ratio
    return {name: round(figure, 2) for name, figure in figures.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=3000)
    print(json.dumps(measure(parser.parse_args().calls)))
