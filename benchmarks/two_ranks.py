"""Update throughput and memory of two ranks of one thread against one rank of one thread.

The same mini-batch on the shape of SmolLM2-135M, split over the ranks by groups. The model comes
from `--model`, else random weights of that shape are written first. Prints one line of JSON. Each
rank is bound to a core; where others use those too, `cpu_speedup` (processor time, that of gloo's
threads included) means something and `speedup` does not.

Run: `python benchmarks/two_ranks.py [--model models/smollm2-135m]`.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM
from update_phase import MICRO_BATCH_TOKENS, demo_config, demo_experience, our_update

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.parallel.world import Rendezvous, open_world

REPEATS = 3


def peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)


def run_rank(arguments: argparse.Namespace) -> dict[str, Any]:
    rank, size = arguments.rank, arguments.size
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    imported_gib = peak_gib()
    rendezvous = Rendezvous("127.0.1.1", arguments.port, "bench")
    address = f"127.0.1.{rank + 1}"
    with open_world(
        rank, size, torch.device("cpu"), address=address, rendezvous=rendezvous
    ) as world:
        model = load_model(arguments.model, world=world)
        loaded_gib = peak_gib()
        training = TrainingSpec(micro_batch_tokens=MICRO_BATCH_TOKENS)
        torch.manual_seed(0)
        rows = demo_experience(model.config.vocab_size)
        mine = rows.select((rows.row_groups % size == rank).nonzero()[:, 0])
        update = our_update(model, mine, training, OptimizerSpec(), world)
        seconds, cpu_seconds = [], []
        for _ in range(REPEATS + 1):
            start, cpu_start = time.perf_counter(), time.process_time()
            norm = update()
            seconds.append(time.perf_counter() - start)
            cpu_seconds.append(time.process_time() - cpu_start)
        start = time.perf_counter()
        for _ in named_full_tensors(model):
            pass
        return {
            "update_seconds": [round(value, 2) for value in seconds[1:]],
            "cpu_seconds": [round(value, 2) for value in cpu_seconds[1:]],
            "gather_weights_seconds": round(time.perf_counter() - start, 2),
            "grad_norm": norm,
            "peak_gib": {"imports": imported_gib, "loaded": loaded_gib, "updated": peak_gib()},
        }


def run_world(size: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    with socket.create_server(("127.0.1.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, *sys.argv, "--model", str(arguments.model)]
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(rank), "--size", str(size), "--port", str(port)],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(size)
    ]
    return [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]


def slowest(ranks: list[dict[str, Any]], key: str) -> float:
    return max(statistics.median(rank[key]) for rank in ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        print(json.dumps(run_rank(arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            LlamaForCausalLM(demo_config()).to(torch.bfloat16).save_pretrained(folder)
            arguments.model = Path(folder)
        worlds = {size: run_world(size, arguments) for size in (1, 2)}
    report = {
        name: round(slowest(worlds[1], key) / slowest(worlds[2], key), 2)
        for name, key in (("speedup", "update_seconds"), ("cpu_speedup", "cpu_seconds"))
    }
    print(json.dumps({**report, "worlds": worlds}))


if __name__ == "__main__":
    main()
