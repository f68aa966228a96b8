"""Round trip of the control RPC between two processes, with CURVE, schema and stored answers.

    python benchmarks/rpc_round_trip.py [--calls 3000]

Prints one JSON object: p50 and p99 in microseconds of a question (answered by the wire's thread)
and of work (handed to the main thread and back, its answer kept).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ppojob_trainer.rpc.client import Call, Caller, Peer
from ppojob_trainer.rpc.keys import read_key_ring, write_key_folders
from ppojob_trainer.rpc.messages import Statistics, Update
from ppojob_trainer.rpc.methods import PING, UPDATE
from ppojob_trainer.rpc.server import Route, RpcServer
from ppojob_trainer.rpc.wire import Nothing, RequestId

ADDRESS, PORT = "127.0.0.1", 17_431


def serve(keys: Path) -> None:
    """Answer until killed."""
    server = RpcServer(
        ADDRESS,
        PORT,
        read_key_ring(keys / "actorRollout", "actorRollout"),
        [
            Route(PING, lambda _: Nothing()),
            Route(UPDATE, lambda request: Statistics({"prompts": float(len(request.prompts))})),
        ],
        epoch=1,
    )
    server.start()
    server.work()


def microseconds(calls: int, call) -> list[float]:
    """Time single calls, after a warm-up."""
    taken = []
    for number in range(calls + 200):
        began = time.perf_counter()
        call(number)
        taken.append((time.perf_counter() - began) * 1e6)
    return sorted(taken[200:])


def measure(calls: int) -> dict[str, float]:
    """Start the server, call it, end it."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        write_key_folders(keys, ("controller", "actorRollout"))
        server = subprocess.Popen([sys.executable, __file__, "--serve", str(keys)])
        caller = Caller(read_key_ring(keys / "controller", "controller"), epoch=1)
        peer = Peer("rank 0", ADDRESS, PORT, "actorRollout")
        try:
            question = microseconds(calls, lambda _: caller.call(Call(peer, PING, Nothing())))
            work = microseconds(
                calls,
                lambda n: caller.call(
                    Call(peer, UPDATE, Update([0, 1, 2], 0.0), RequestId(1, n, "update"))
                ),
            )
        finally:
            caller.close()
            server.kill()
            server.wait()
    return {
        "question_p50_us": statistics.median(question),
        "question_p99_us": question[int(0.99 * calls)],
        "work_p50_us": statistics.median(work),
        "work_p99_us": work[int(0.99 * calls)],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--serve", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
    else:
        print(json.dumps(measure(arguments.calls)))
