"""One rank process of `hybrid_worlds.py`: an actor (world, engine, FSDP2 model) or a reference.

The parent plays the pod supervisors. It writes one JSON call a line to this process's standard
input and reads one JSON answer a line; every call runs on the main thread, except `ping` and
`cut_channel`, which the control thread answers even while the main thread waits in a collective.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
from typing import Any, TextIO

import torch
import torch.distributed as dist

PAYLOAD_ELEMENTS = 4_000_000  # 16 MB of float32 each way and rank
PROMPT = list(range(5, 25))
NUM_TOKENS = 16


def seconds(value: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=value)


def gloo_options(host: str, timeout_seconds: float) -> Any:
    """Gloo on the pod's own address: `lo` alone would put every pod on 127.0.0.1."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = seconds(timeout_seconds)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
    return options


class Rank:
    """What every role's rank can do: hold its world, open and lose a channel."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.rank, self.host = int(setup["rank"]), str(setup["host"])
        self.channel: Any = None
        self.channel_sockets: list[int] = []
        self.role_store = connect(setup["store_port"])
        self.channel_store = connect(setup["channel_store_port"])
        prefix = dist.PrefixStore(str(setup["prefix"]), self.role_store)
        dist.init_process_group(
            "gloo",
            store=prefix,
            rank=self.rank,
            world_size=int(setup["world_size"]),
            pg_options=gloo_options(self.host, 60.0),
        )

    def open_channel(self, key: str, member: int, size: int, timeout_seconds: float) -> None:
        """A group outside the default one; dropping the last reference closes its sockets."""
        self.channel = None
        before = open_sockets()
        self.channel = dist.ProcessGroupGloo(
            dist.PrefixStore(key, self.channel_store),
            member,
            size,
            gloo_options(self.host, timeout_seconds),
        )
        self.channel_sockets = [fd for fd in open_sockets() if fd not in before]

    def close_channel(self) -> None:
        self.channel, self.channel_sockets = None, []

    def wait_on_channel(self, peer: int) -> dict[str, Any]:
        """Receives what never comes, and tells what the collective itself reports."""
        start = time.monotonic()
        try:
            self.channel.recv([torch.empty(8)], peer, 9).wait()
        except RuntimeError as error:
            return {"saw": last_words(error), "after": time.monotonic() - start}
        return {"saw": "nothing: data came", "after": time.monotonic() - start}

    def cut_channel(self) -> int:
        """Control thread: shut the channel's connections down under the waiting main thread."""
        num_cut = 0
        for fd in self.channel_sockets:
            with socket.socket(fileno=os.dup(fd)) as connection:
                try:
                    # A shut listening socket makes gloo end the process: only connected ones.
                    connection.getpeername()
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
                num_cut += 1
        return num_cut

    def abort_channel(self) -> None:
        """Control thread: the abort that the process group offers."""
        self.channel.abort()

    def memory_gib(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Reference(Rank):
    def exchange(self) -> None:
        """Takes a payload from either actor and returns it plus one."""
        actors = self.channel.size() - 1
        payloads = [torch.empty(PAYLOAD_ELEMENTS) for _ in range(actors)]
        for work in [self.channel.recv([payloads[a]], a, 7) for a in range(actors)]:
            work.wait()
        for work in [self.channel.send([payloads[a] + 1], a, 8) for a in range(actors)]:
            work.wait()


class Actor(Rank):
    """The order matters: role world, then the engine, then the training model."""

    def load_engine(self, folder: str) -> None:
        from vllm import LLM, SamplingParams

        self.sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        self.engine = LLM(
            model=folder,
            dtype="float32",  # so that greedy tokens can be compared exactly
            max_model_len=256,
            enforce_eager=True,
            skip_tokenizer_init=True,
            seed=0,
        )

    def load_model(self, folder: str) -> None:
        from torch.distributed.fsdp import fully_shard
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def exchange(self) -> dict[str, Any]:
        start, peer = time.monotonic(), self.channel.size() - 1
        self.channel.send([torch.full((PAYLOAD_ELEMENTS,), float(self.rank))], peer, 7).wait()
        answer = torch.empty(PAYLOAD_ELEMENTS)
        self.channel.recv([answer], peer, 8).wait()
        moved_bytes = 2 * answer.nbytes
        correct = bool((answer == self.rank + 1).all())
        return {"correct": correct, "gb_per_second": moved_bytes / (time.monotonic() - start) / 1e9}

    def train_step(self, learning_rate: float) -> float:
        """Forward, backward and one plain descent step over the role world; the loss."""
        tokens = torch.tensor([PROMPT])
        loss = self.model(tokens, labels=tokens).loss
        loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= learning_rate * parameter.grad
        self.model.zero_grad(set_to_none=True)
        return float(loss.detach())

    def sync_weights(self) -> None:
        """Shards -> full tensors -> the engine, with its packed tied head made anew."""
        driver = self.engine.llm_engine.model_executor.driver_worker
        worker = getattr(driver, "worker", driver)
        tensors = [(name, p.full_tensor()) for name, p in self.model.named_parameters()]
        with torch.no_grad():
            worker.reload_weights(weights_iterator=iter(tensors))
            head = worker.model_runner.model.lm_head
            # vLLM keeps the packed head of the old weights where it is tied to the embedding
            head.quant_method.process_weights_after_loading(head)
        self.engine.reset_prefix_cache()

    def engine_tokens(self) -> list[int]:
        request = {"prompt_token_ids": PROMPT}
        return list(
            self.engine.generate(request, self.sampling, use_tqdm=False)[0].outputs[0].token_ids
        )

    def model_tokens(self) -> list[int]:
        """The training model's own greedy continuation: what the engine must say."""
        tokens = list(PROMPT)
        with torch.no_grad():
            for _ in range(NUM_TOKENS):
                logits = self.model(torch.tensor([tokens]), use_cache=False).logits
                tokens.append(int(logits[0, -1].argmax()))
        return tokens[len(PROMPT) :]

    def wait_in_world(self) -> dict[str, Any]:
        start = time.monotonic()
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            return {"saw": last_words(error), "after": time.monotonic() - start}
        return {"saw": "the sum", "after": time.monotonic() - start}


def connect(port: int) -> Any:
    return dist.TCPStore("127.0.0.1", int(port), is_master=False, wait_for_workers=False)


def open_sockets() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return found


def last_words(error: RuntimeError) -> str:
    """Gloo's message without its source path."""
    return str(error).split("] ", 1)[-1].split(". This", 1)[0].splitlines()[0]


def serve(role: str, setup: dict[str, Any], answers: TextIO) -> None:
    """Main thread: calls in order. Control thread: the two calls that must never wait."""
    calls: queue.Queue[dict[str, Any]] = queue.Queue()
    rank = Actor(setup) if role == "actor" else Reference(setup)

    def answer(call: dict[str, Any]) -> None:
        start = time.monotonic()
        result = (
            getattr(rank, call["name"])(**call["arguments"]) if call["name"] != "ping" else None
        )
        line = {"call": call["id"], "result": result, "seconds": time.monotonic() - start}
        answers.write(json.dumps(line) + "\n")

    def control() -> None:
        for line in sys.stdin:
            call = json.loads(line)
            if call["name"] in {"ping", "cut_channel", "abort_channel"}:
                answer(call)
            else:
                calls.put(call)
        os._exit(0)  # the parent is gone

    threading.Thread(target=control, daemon=True).start()
    while True:
        answer(calls.get())


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    torch.set_num_threads(1)
    # The answers keep the real standard output; what libraries print goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    role, setup = sys.argv[1], json.loads(sys.argv[2])
    serve(role, setup, answers)


if __name__ == "__main__":
    main()
