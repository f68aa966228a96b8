"""The supervisors' side of `hybrid_worlds.py`: rank processes, role stores, channels by epoch."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

JOB_UID = "0f6b1c1e-hybrid-worlds"
CHANNEL_TIMEOUT_SECONDS = 10.0  # architecture.md: channels to a lost role close within 10 s


class Child:
    """A rank process, its calls and its answers with the time at which they came."""

    def __init__(self, role: str, rank: int, epoch: int, setup: dict[str, Any], log: Path) -> None:
        self.name = f"{role} {rank} (epoch {epoch})"
        self.ids, self.answers = itertools.count(), queue.Queue[dict[str, Any] | None]()
        self.early: dict[int, dict[str, Any]] = {}
        environment = dict(
            os.environ,
            GLOO_SOCKET_IFNAME="lo",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND=str(rank % (os.cpu_count() or 1)),
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_LOGGING_LEVEL="WARNING",
        )
        script = Path(__file__).with_name("hybrid_rank.py")
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(script), role, json.dumps(setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                env=environment,
            )
        self.log = log
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put({**json.loads(line), "at": time.monotonic()})
        self.answers.put(None)

    def post(self, call: str, /, **arguments: Any) -> int:
        assert self.process.stdin is not None
        number = next(self.ids)
        record = {"id": number, "name": call, "arguments": arguments}
        self.process.stdin.write(json.dumps(record) + "\n")
        return number

    def answer(self, number: int, within: float = 120.0) -> dict[str, Any]:
        """The answer to call `number`: its result, its seconds and when it came (`at`)."""
        deadline = time.monotonic() + within
        while number not in self.early:
            got = self.answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if got is None:
                tail = self.log.read_text()[-2000:]
                raise RuntimeError(f"{self.name}: ended by itself; its log ends:\n{tail}")
            self.early[got["call"]] = got
        return self.early.pop(number)

    def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.post(name, **arguments))

    def is_silent(self, number: int, during: float) -> bool:
        with contextlib.suppress(queue.Empty):
            self.early[number] = self.answer(number, within=during)
            return False
        return True

    def send_signal(self, number: signal.Signals) -> float:
        self.process.send_signal(number)
        return time.monotonic()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Cluster:
    """The supervisors' side: stores that outlive the ranks, roles by epoch, channels by pair."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder, model
        self.stores = {
            role: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            for role in ("actor", "reference")
        }
        self.children: list[Child] = []

    def start(self, role: str, epoch: int, size: int) -> list[Child]:
        """All ranks of one role under one epoch; they meet in the role's own store."""
        started = []
        for rank in range(size):
            setup = {
                "rank": rank,
                "world_size": size,
                "host": f"127.0.1.{(10 if role == 'actor' else 20) + rank}",
                "store_port": self.stores[role].port,
                "channel_store_port": self.stores["actor"].port,
                "prefix": f"{JOB_UID}/{role}/{epoch}",
            }
            log = self.folder / f"{role}-{rank}-epoch-{epoch}.log"
            started.append(Child(role, rank, epoch, setup, log))
            self.children.append(started[-1])
        together(started, "ping")
        return started

    def load(self, actors: list[Child]) -> float:
        together(actors, "load_engine", folder=self.model)
        return together(actors, "load_model", folder=self.model)

    def connect(self, actors: list[Child], reference: Child, epochs: tuple[int, int]) -> float:
        """Opens the channel of this pair of epochs; the slowest member's seconds."""
        members = [*actors, reference]
        key = f"{JOB_UID}/channel/actor.{epochs[0]}-reference.{epochs[1]}"
        posted = [
            child.post(
                "open_channel",
                key=key,
                member=member,
                size=len(members),
                timeout_seconds=CHANNEL_TIMEOUT_SECONDS,
            )
            for member, child in enumerate(members)
        ]
        answers = [child.answer(number) for child, number in zip(members, posted, strict=True)]
        return max(float(answer["seconds"]) for answer in answers)

    def end(self) -> None:
        for child in self.children:
            child.end()


def together(children: list[Child], name: str, **arguments: Any) -> float:
    return max(float(answer["seconds"]) for answer in answers_of(children, name, **arguments))


def answers_of(children: list[Child], name: str, **arguments: Any) -> list[dict[str, Any]]:
    posted = [child.post(name, **arguments) for child in children]
    return [child.answer(number) for child, number in zip(children, posted, strict=True)]
