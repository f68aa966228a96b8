"""Role worlds, channels and epochs with a live engine: what a loss looks like, and a rebuild.

    python benchmarks/hybrid_worlds.py [--model FOLDER] [--json FILE]

Two actor ranks (each: gloo role world, vLLM in process, FSDP2 model) and one reference rank in a
world of its own, all real processes. This process plays the pod supervisors: it hosts the
rendezvous stores, so they outlive every rank. The reference is killed, then stopped; then the
actor's whole role is replaced. Figures and conclusions: docs/adr/0001-worlds-channels-and-epochs.md
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hybrid_pods import Child, Cluster, answers_of, together

SILENCE_SECONDS = 3.0
TIME_LIMIT_SECONDS = 600.0


@dataclasses.dataclass
class Report:
    """What was measured and what was claimed; a false claim makes the exit status 1."""

    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)

    def figure(self, name: str, value: Any) -> None:
        self.figures[name] = round(value, 3) if isinstance(value, float) else value
        print(f"{name:<58} {self.figures[name]}", flush=True)

    def claim(self, name: str, holds: bool) -> None:
        self.figure(name, bool(holds))
        if not holds:
            self.failed.append(name)


def exchange(actors: list[Child], reference: Child) -> tuple[bool, float]:
    """Payloads both ways between either actor and the reference: all right, slowest GB/s."""
    number = reference.post("exchange")
    results = [answer["result"] for answer in answers_of(actors, "exchange")]
    reference.answer(number)
    return all(r["correct"] for r in results), min(r["gb_per_second"] for r in results)


def weights_reach_the_engine(report: Report, actors: list[Child]) -> None:
    def tokens(name: str) -> list[list[int]]:
        return [answer["result"] for answer in answers_of(actors, name)]

    before = tokens("engine_tokens")
    report.claim("the engine says what the FSDP2 model says", before == tokens("model_tokens"))
    for _ in range(3):
        together(actors, "train_step", learning_rate=0.5)
    report.claim("a training step alone leaves the engine", tokens("engine_tokens") == before)
    report.figure("weights FSDP2 -> engine, seconds", together(actors, "sync_weights"))
    after = tokens("engine_tokens")
    report.claim(
        "after the sync the tokens change, alike on both ranks",
        after != before and after[0] == after[1],
    )
    report.claim("and are again those of the FSDP2 model", after == tokens("model_tokens"))


def own_world_goes_on(report: Report, actors: list[Child], after: str) -> None:
    answers = answers_of(actors, "wait_in_world")
    holds = all(answer["result"]["saw"] == "the sum" for answer in answers)
    report.claim(f"{after}: the actor's own world goes on", holds)
    together(actors, "train_step", learning_rate=0.0)
    together(actors, "engine_tokens")


def rebuild(
    report: Report, cluster: Cluster, actors: list[Child], epochs: tuple[int, int]
) -> Child:
    """A fresh reference under the next epoch, and the channel to it."""
    epoch = f"reference epoch {epochs[1]}"
    together(actors, "close_channel")
    start = time.monotonic()
    (reference,) = cluster.start("reference", epochs[1], 1)
    report.figure(f"{epoch}: process up, seconds", time.monotonic() - start)
    opened = cluster.connect(actors, reference, epochs)
    report.figure(f"{epoch}: channel open, seconds", opened)
    report.claim(f"{epoch}: rows cross the new channel", exchange(actors, reference)[0])
    return reference


def reference_killed(report: Report, actors: list[Child], reference: Child) -> None:
    waiting = [actor.post("wait_on_channel", peer=2) for actor in actors]
    time.sleep(0.5)
    killed_at = reference.send_signal(signal.SIGKILL)
    answers = [actor.answer(number) for actor, number in zip(actors, waiting, strict=True)]
    report.figure("SIGKILL: survivors see", answers[0]["result"]["saw"])
    report.figure("SIGKILL: after, seconds", max(a["at"] for a in answers) - killed_at)
    own_world_goes_on(report, actors, "SIGKILL")


def reference_stopped(report: Report, actors: list[Child], reference: Child) -> None:
    """Rank 0 is freed by its control thread, rank 1 is left to the channel's own time limit."""
    waiting = [actor.post("wait_on_channel", peer=2) for actor in actors]
    time.sleep(0.5)
    stopped_at = reference.send_signal(signal.SIGSTOP)
    report.claim(
        f"SIGSTOP: nothing is seen in {SILENCE_SECONDS:.0f} s",
        all(
            actor.is_silent(number, SILENCE_SECONDS / 2)
            for actor, number in zip(actors, waiting, strict=True)
        ),
    )
    asked_at = time.monotonic()
    answered_at = actors[0].call("ping")["at"]
    report.figure("SIGSTOP: the control thread still answers, seconds", answered_at - asked_at)
    actors[0].call("abort_channel")
    freed_by_abort = not actors[0].is_silent(waiting[0], 1.0)
    report.figure("SIGSTOP: gloo's abort() frees the waiting thread", freed_by_abort)
    cut_at = time.monotonic()
    actors[0].call("cut_channel")
    freed = actors[0].answer(waiting[0])
    report.figure("SIGSTOP: sockets shut down: survivor sees", freed["result"]["saw"])
    report.figure("SIGSTOP: sockets shut down: after, seconds", freed["at"] - cut_at)
    left_alone = actors[1].answer(waiting[1])
    report.figure("SIGSTOP: left alone, a survivor sees", left_alone["result"]["saw"])
    report.figure("SIGSTOP: left alone, after seconds", left_alone["at"] - stopped_at)
    own_world_goes_on(report, actors, "SIGSTOP")


def stopped_comes_back(report: Report, actors: list[Child], old: Child, new: Child) -> None:
    """The old incarnation wakes while its successor serves: it must reach nobody."""
    old.send_signal(signal.SIGCONT)
    saw = old.call("wait_on_channel", peer=0)["result"]["saw"]
    report.figure("SIGCONT: the old incarnation sees", saw)
    correct, rate = exchange(actors, new)
    report.claim("SIGCONT: the new channel is not disturbed", correct)
    report.figure("channel, GB/s a rank (both ways, loopback)", rate)
    old.end()


def actor_role_replaced(
    report: Report, cluster: Cluster, actors: list[Child], reference: Child
) -> list[Child]:
    """One actor rank stops inside a collective: its whole role is ended and started again."""
    number = actors[0].post("wait_in_world")
    actors[1].send_signal(signal.SIGSTOP)
    report.claim(
        f"a stopped rank: its world sees nothing in {SILENCE_SECONDS:.0f} s",
        actors[0].is_silent(number, SILENCE_SECONDS),
    )
    waiting = reference.post("wait_on_channel", peer=0)
    ended_at = time.monotonic()
    for actor in actors:
        actor.end()
    report.figure(
        "role ended: the other role sees it, after seconds",
        reference.answer(waiting)["at"] - ended_at,
    )
    reference.call("close_channel")
    fresh = cluster.start("actor", 1, 2)
    cluster.load(fresh)
    together(fresh, "engine_tokens")
    report.figure("actor's next epoch: to the first token, seconds", time.monotonic() - ended_at)
    cluster.connect(fresh, reference, (1, 2))
    report.claim(
        "the reference kept its process and serves the new epoch", exchange(fresh, reference)[0]
    )
    return fresh


def story(report: Report, cluster: Cluster) -> None:
    start = time.monotonic()
    actors = cluster.start("actor", 0, 2)
    (reference,) = cluster.start("reference", 0, 1)
    report.figure("worlds up, seconds", time.monotonic() - start)
    cluster.load(actors)
    together(actors, "engine_tokens")
    report.figure("engine and FSDP2 model, to the first token, seconds", time.monotonic() - start)
    weights_reach_the_engine(report, actors)
    report.figure("first channel open, seconds", cluster.connect(actors, reference, (0, 0)))
    correct, rate = exchange(actors, reference)
    report.claim("rows cross the channel both ways", correct)
    report.figure("channel, GB/s a rank (first use)", rate)
    reference_killed(report, actors, reference)
    stopped = rebuild(report, cluster, actors, (0, 1))
    reference_stopped(report, actors, stopped)
    reference = rebuild(report, cluster, actors, (0, 2))
    stopped_comes_back(report, actors, stopped, reference)
    actors = actor_role_replaced(report, cluster, actors, reference)
    peak = max(answer["result"] for answer in answers_of(actors, "memory_gib"))
    report.figure("actor rank, peak memory, GiB", peak)


def tiny_model(folder: Path) -> str:
    """A random two-layer Llama with tied embeddings, in the Hugging Face layout."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def end_at_the_limit(end: Callable[[], None]) -> threading.Timer:
    def give_up() -> None:
        print(
            f"benchmarks/hybrid_worlds.py: not done after {TIME_LIMIT_SECONDS:.0f} s",
            file=sys.stderr,
        )
        end()
        os._exit(1)

    timer = threading.Timer(TIME_LIMIT_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    return timer


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="a Hugging Face folder; default: a tiny random Llama")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="hybrid-worlds-") as scratch:
        folder = Path(scratch)
        cluster = Cluster(folder, options.model or tiny_model(folder / "model"))
        timer = end_at_the_limit(cluster.end)
        try:
            report.figure("load average at the start", os.getloadavg()[0])
            story(report, cluster)
        finally:
            timer.cancel()
            cluster.end()
    if options.json:
        options.json.write_text(json.dumps(report.figures, indent=2) + "\n")
    for name in report.failed:
        print(f"does not hold: {name}", file=sys.stderr)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
