"""Writes down the work of a job of ours for the peer: its settings, and its prompts in order.

    python benchmarks/peer_work.py --job RUN/job.yaml --steps 4 --output work.jsonl

The first line holds the settings that `trl_peer.py` mirrors; every other line is a prompt:
{"prompt": text, "prompt_token_ids": [...], "ground_truth": "26"}. The order is drawn by the very
classes that the controller draws with, from the job as resolved in its run folder. A job that
uses what the peer does not mirror is refused: the two runs would not do the same work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_cli.job_file import load_job
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset


def refuse_what_the_peer_lacks(spec: PPOJobSpec) -> None:
    algorithm = spec.algorithm
    mirrored: dict[str, tuple[Any, Any]] = {
        "algorithm.type": (algorithm.type, "grpo"),
        "algorithm.epochs": (algorithm.epochs, 1),
        "algorithm.miniBatchPrompts": (algorithm.mini_batch_prompts, algorithm.prompts_per_step),
        "algorithm.lossAggregation": (algorithm.loss_aggregation, "token_mean"),
        "algorithm.entropyCoefficient": (algorithm.entropy_coefficient, 0.0),
        "algorithm.kl.in": (algorithm.kl.in_, "none"),
        "optimizer.schedule": (spec.optimizer.schedule, "constant"),
        "optimizer.warmupSteps": (spec.optimizer.warmup_steps, 0),
        "model.dtype": (spec.model.dtype, "float32"),
        "rollout.topP": (spec.rollout.top_p, 1.0),
        "rollout.minP": (spec.rollout.min_p, 0.0),
        "rollout.repetitionPenalty": (spec.rollout.repetition_penalty, 1.0),
    }
    problems = [
        f"spec.{where}: got {got}: the peer does not mirror it; {allowed}"
        for where, (got, allowed) in mirrored.items()
        if got != allowed
    ]
    if problems:
        raise ValueError("\n".join(problems))


def settings(config: RunConfig) -> dict[str, Any]:
    """What the peer sets the same, by the names of `trl_peer.Settings`."""
    spec, actor = config.spec, config.topology.role("actorRollout")
    return {
        "model": spec.model.path,
        "prompts_per_step": spec.algorithm.prompts_per_step,
        "samples_per_prompt": spec.algorithm.samples_per_prompt,
        "max_response_tokens": spec.data.max_response_tokens,
        "temperature": spec.rollout.temperature,
        "clip_low": spec.algorithm.policy_loss.clip_low,
        "clip_high": spec.algorithm.policy_loss.clip_high,
        "learning_rate": spec.optimizer.learning_rate,
        "weight_decay": spec.optimizer.weight_decay,
        "gradient_clip": spec.optimizer.gradient_clip,
        "autocast": spec.training.autocast,
        "threads": actor.threads_per_rank * actor.world_size,
    }


def write_work(config: RunConfig, num_steps: int, output: Path) -> int:
    """Writes settings and the prompts of the first steps; returns the number of prompts."""
    spec = config.spec
    with contextlib.ExitStack() as stack:
        chat = stack.enter_context(
            ChatTokenizer(
                spec.model.path,
                spec.model.tokenizer_path or spec.model.path,
                spec.model.chat_template,
            )
        )
        prompts = stack.enter_context(PromptDataset.open(spec.data, chat))
        order = prompts.order(spec.data, spec.algorithm.prompts_per_step)
        lines = [json.dumps({"settings": settings(config)})]
        for _ in range(num_steps):
            for row in prompts.rows(order.next_batch(spec.algorithm.prompts_per_step)):
                line = {
                    "prompt": chat.decode(row.token_ids, skip_special_tokens=False),
                    "prompt_token_ids": list(row.token_ids),
                    "ground_truth": row.ground_truth,
                }
                lines.append(json.dumps(line))
    output.write_text("\n".join(lines) + "\n")
    return len(lines) - 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--job", required=True, type=Path, help="job.yaml of our run")
    parser.add_argument("--steps", required=True, type=int)
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    try:
        config = resolve(load_job(options.job))
        refuse_what_the_peer_lacks(config.spec)
        num_prompts = write_work(config, options.steps, options.output)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.output}: {num_prompts} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
