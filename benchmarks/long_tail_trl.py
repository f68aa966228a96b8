"""TRL 1.16.0's update on the batch of `long_tail_rows.py`: the peer of `long_tail_update.py`.

    .venv-trl/bin/python benchmarks/long_tail_trl.py --work FOLDER --output FILE [--steps 4]
        [--threads 2] [--micro-batch 16] [--autocast none]

Runs in the environment that `trl_environment.sh` makes. The rows are handed to GRPOTrainer by its
`rollout_func`, so that nothing is generated: same weights, same rows, same rewards, same optimizer,
autocast over fp32 weights (bf16 or none). In TRL's favour: no activation checkpointing (its default
is on), the whole batch in one micro-batch, sdpa attention, fused AdamW. Writes one line of JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from long_tail_ratio import LEARNING_RATE, read_rows
from trl_peer import StepClock, grpo_config, step_lines, timed_trainer


def config_of(options: argparse.Namespace, rows: list[dict[str, Any]], folder: str) -> Any:
    return grpo_config(
        folder,
        options.autocast,
        learning_rate=LEARNING_RATE,
        weight_decay=0.0,
        max_grad_norm=1.0,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=len(rows) // options.micro_batch,
        num_generations=sum(row["group"] == 0 for row in rows),
        max_completion_length=max(len(row["response_ids"]) for row in rows),
        max_steps=options.steps,
        logging_strategy="steps",
        logging_steps=1,
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    import transformers
    from datasets import Dataset

    torch.set_num_threads(options.threads)
    rows = read_rows(options.work)
    rewards = [row["reward"] for row in rows]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.work / "model", dtype=torch.float32, attn_implementation="sdpa"
    )

    def fixed_rows(_prompts: Any, _trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [row["prompt_ids"] for row in rows],
            "completion_ids": [row["response_ids"] for row in rows],
            "logprobs": None,
        }

    clock, written = StepClock(), io.StringIO()
    groups = max(row["group"] for row in rows) + 1
    with tempfile.TemporaryDirectory(prefix="trl-peer-") as folder:
        trainer = timed_trainer(clock, cached_casts=False)(
            model=model,
            reward_funcs=lambda completions, **_: rewards[: len(completions)],
            args=config_of(options, rows, folder),
            train_dataset=Dataset.from_list([{"prompt": "x"}] * groups * options.steps),
            processing_class=transformers.AutoTokenizer.from_pretrained(options.work / "model"),
            callbacks=[step_lines(clock, written, options.threads)],
            rollout_func=fixed_rows,
        )
        trainer.train()
    steps = [json.loads(line) for line in written.getvalue().splitlines()]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return report(steps, norms)


def report(steps: list[dict[str, Any]], norms: list[float]) -> dict[str, Any]:
    counted = steps[1:] or steps
    median = statistics.median(step["update_seconds"] for step in counted)
    tokens = counted[-1]["prompt_tokens"] + counted[-1]["response_tokens"]
    return {
        "way": "trl",
        "median_seconds": round(median, 3),
        "real_tokens_per_second": round(tokens / median),
        "density": round(tokens / counted[-1]["padded_tokens"], 3),
        "cpu_share": statistics.median(step["cpu_share"] for step in counted),
        "grad_norm": norms[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="from long_tail_rows.py")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--autocast", choices=("bfloat16", "none"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=16, help="rows a forward and backward")
    options = parser.parse_args()
    # Read when torch is first imported, so set before.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    options.output.write_text(json.dumps(run(options)) + "\n")


if __name__ == "__main__":
    main()
