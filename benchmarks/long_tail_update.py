"""One update on the batch of `long_tail_rows.py`: ours, or with full logits; time and memory.

    python benchmarks/long_tail_update.py --work FOLDER --output FILE [--way ours|full-logits]
        [--steps 4] [--threads 2] [--given-share 0.6] [--autocast none]

With a `--given-share` so much of each response is as if tools had written it: it is not trained on.
`full-logits` is the textbook: rows padded to the longest, the model of transformers, log-softmax
over all logits of the responses. Prints a line a step, writes one line of JSON. `extra_gib` is by
how much the resident memory grew during an update beyond what weights and optimizer hold: gradients
and all that forward and backward keep.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from long_tail_ratio import LEARNING_RATE, read_rows
from transformers import AutoModelForCausalLM, PreTrainedModel
from update_phase import our_update

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.models.load import load_model
from ppojob_trainer.rows.experience import Experience


def experience(rows: list[dict[str, Any]], given_share: float = 0.0) -> Experience:
    """What is trained on: every ten tokens of a response begin with those that are trained."""
    groups = torch.tensor([row["group"] for row in rows])
    samples = int((groups == 0).sum())
    lengths = torch.tensor([len(row["response_ids"]) for row in rows])
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, samples)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
    prompts = {row["group"]: torch.tensor(row["prompt_ids"]) for row in rows}
    places = torch.cat([torch.arange(int(length)) for length in lengths])
    return Experience(
        prompts=list(prompts.values()),
        row_groups=groups,
        response_tokens=torch.tensor([token for row in rows for token in row["response_ids"]]),
        lengths=lengths,
        mask=places % 10 < round(10 * (1.0 - given_share)),
        rollout_logprobs=torch.zeros(len(places)),
        advantages=advantages.flatten().repeat_interleave(lengths),
    )


def ours(folder: Path, rows: Experience, autocast: str) -> Callable[[], float]:
    """Our update; its call answers the norm of the gradient."""
    training = TrainingSpec(autocast=autocast, micro_batch_tokens=16384)
    optimizer = OptimizerSpec(learning_rate=LEARNING_RATE)
    return our_update(load_model(folder), rows, training, optimizer)


def with_full_logits(folder: Path, rows: Experience, autocast: str) -> Callable[[], float]:
    """Forward, backward and norm; without the optimizer, whose states are not counted anyway."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = torch.stack([rows.prompts[group] for group in rows.row_groups.tolist()])
    responses = torch.nn.utils.rnn.pad_sequence(
        list(rows.response_tokens.split(rows.lengths.tolist())), batch_first=True
    )
    counts = torch.arange(responses.size(1)) < rows.lengths[:, None]
    seen = torch.cat([torch.ones_like(prompts), counts.long()], dim=1)
    advantages = torch.zeros(counts.shape)
    assert rows.advantages is not None
    advantages[counts] = rows.advantages

    def update() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast == "bfloat16"):
            logits = model(
                torch.cat([prompts, responses], dim=1),
                attention_mask=seen,
                logits_to_keep=responses.size(1) + 1,
            ).logits[:, :-1]
        logprobs = logits.float().log_softmax(-1).gather(-1, responses[:, :, None])[:, :, 0]
        ratio = (logprobs - logprobs.detach()).exp()
        loss = -(ratio * advantages * counts).sum() / counts.sum()
        del logits
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        model.zero_grad()
        return norm

    return update


WAYS = {"ours": ours, "full-logits": with_full_logits}


class Memory:
    """Growth of the resident memory, in GiB, since it was made."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = self._read("VmRSS")

    def extra_gib(self) -> float:
        return round((self._read("VmHWM") - self._before) / 2**20, 3)

    def _read(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="from long_tail_rows.py")
    parser.add_argument("--way", choices=WAYS, default="ours")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--autocast", choices=("bfloat16", "none"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--given-share", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = experience(read_rows(options.work), options.given_share)
    update = WAYS[options.way](options.work / "model", rows, options.autocast)
    real_tokens = sum(len(rows.prompts[g]) for g in rows.row_groups.tolist()) + rows.num_tokens
    seconds, extra, norm = [], 0.0, 0.0
    for _ in range(options.steps):
        memory, start, cpu_start = Memory(), time.perf_counter(), time.process_time()
        norm = update()
        seconds.append(time.perf_counter() - start)
        extra = memory.extra_gib()
        share = (time.process_time() - cpu_start) / seconds[-1] / options.threads
        line = {"update_seconds": round(seconds[-1], 3), "cpu_share": round(share, 3)}
        print(json.dumps({**line, "extra_gib": extra, "grad_norm": norm}), flush=True)
    median = statistics.median(seconds[1:] or seconds)
    report = {
        "way": options.way,
        "median_seconds": round(median, 3),
        "real_tokens_per_second": round(real_tokens / median),
        "extra_gib": extra,
        "grad_norm": norm,
    }
    options.output.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
