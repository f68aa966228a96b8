"""The demo's step on TRL 1.16.0's GRPOTrainer, timed: the peer of `step_speed.py`.

    .venv-trl/bin/python benchmarks/trl_peer.py --model FOLDER --prompts prompts.jsonl \
        --output trl.jsonl [--steps 4] [--micro-batch 64] [--threads 2]

Runs in the environment that `trl_environment.sh` makes. What is the same as in our run: the model
folder, the prompts and their order (token for token, checked), the reward function (the very file
of ours), 16 prompts x 8 samples, at most 32 new tokens, temperature 1, AdamW 2e-5 constant without
weight decay, gradient clip 1, no KL, one iteration, token mean, bf16 autocast over fp32 weights,
the number of threads. What was chosen in TRL's favour:

- all 128 responses are generated in one batch; TRL's transformers path pads to the longest prompt
  of the batch, and the prompts here differ by few tokens;
- the micro-batch is the quickest of those tried (--micro-batch; docs/adr/0003-the-trl-peer.md);
- no activation checkpointing (TRL's default is on), sdpa attention, no logging, no saving;
- --cached-casts holds one autocast region open around the whole generation, so that fp32 weights
  are cast once a batch and not once a token. TRL does not offer this; it is measured apart.

Not used, with the reason: TRL's vLLM mode (TRL 1.16.0 supports vLLM 0.22 to 0.31 on accelerators,
not 0.32 on a CPU); its transformers continuous batching (it casts the trained weights themselves
to bf16 for good, which is not the same training).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

SAMPLES_PER_PROMPT = 8


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is set from outside, written into the first line of the output."""

    model: str
    prompts: str
    steps: int
    micro_batch: int
    threads: int
    prompts_per_step: int
    max_response_tokens: int
    learning_rate: float
    cached_casts: bool


@dataclasses.dataclass
class StepClock:
    """Seconds of the parts of one step, and what was computed in it."""

    generate_seconds: float = 0.0
    generate_and_score_seconds: float = 0.0
    prompt_tokens: int = 0
    response_tokens: int = 0
    padded_tokens: int = 0
    mean_score: float = 0.0
    share_exact: float = 0.0


def read_prompts(settings: Settings, tokenizer: Any) -> list[dict[str, str]]:
    """Rows in the order of our run; refuses prompts that TRL would tokenize otherwise."""
    rows = []
    for number, line in enumerate(Path(settings.prompts).read_text().splitlines(), start=1):
        row = json.loads(line)
        if tokenizer(row["prompt"])["input_ids"] != row["prompt_token_ids"]:
            raise ValueError(
                f"{settings.prompts}:{number}: got a prompt that TRL's tokenizer reads otherwise: "
                "the two runs would not do the same work"
            )
        rows.append({"prompt": row["prompt"], "ground_truth": row["ground_truth"]})
    wanted = settings.steps * settings.prompts_per_step
    if len(rows) < wanted:
        raise ValueError(f"{settings.prompts}: got {len(rows)} prompts: {wanted} are needed")
    return rows[:wanted]


def grpo_config(settings: Settings, folder: str) -> Any:
    from trl import GRPOConfig

    rows_per_step = settings.prompts_per_step * SAMPLES_PER_PROMPT
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=True,
        gradient_checkpointing=False,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=rows_per_step // settings.micro_batch,
        num_generations=SAMPLES_PER_PROMPT,
        max_completion_length=settings.max_response_tokens,
        max_steps=settings.steps,
        loss_type="dapo",  # the mean over the tokens of the whole batch
        scale_rewards="group",
        beta=0.0,
        num_iterations=1,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        use_vllm=False,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )


def reward_function(clock: StepClock) -> Any:
    """Our scorer of the demo's task behind TRL's calling convention."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer_image"))
    from ppojob_trainer.rewards.addition import addition

    def addition_reward(completions: list[str], ground_truth: list[str], **_: Any) -> list[float]:
        verdicts = [addition(c, truth) for c, truth in zip(completions, ground_truth, strict=True)]
        clock.mean_score = sum(v["score"] for v in verdicts) / len(verdicts)
        clock.share_exact = sum(v["acc"] for v in verdicts) / len(verdicts)
        return [v["score"] for v in verdicts]

    return addition_reward


def timed_trainer(clock: StepClock, *, cached_casts: bool) -> Any:
    """GRPOTrainer with clocks around its two stages; the work itself is TRL's."""
    import torch
    from trl import GRPOTrainer

    class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: list[Any], *rest: Any, **named: Any) -> Any:
            start = time.perf_counter()
            with contextlib.ExitStack() as stack:
                if cached_casts:
                    stack.enter_context(torch.autocast("cpu", torch.bfloat16))
                result = super()._generate(prompts, *rest, **named)
            clock.generate_seconds = time.perf_counter() - start
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.perf_counter()
            batch = super()._generate_and_score_completions(inputs)
            clock.generate_and_score_seconds = time.perf_counter() - start
            clock.prompt_tokens = int(batch["prompt_mask"].sum())
            clock.response_tokens = int(batch["completion_mask"].sum())
            clock.padded_tokens = batch["prompt_mask"].numel() + batch["completion_mask"].numel()
            return batch

    return TimedTrainer


def step_lines(clock: StepClock, output: TextIO) -> Any:
    """A callback that writes one line a step; a step lasts from end to end."""
    from transformers import TrainerCallback

    class StepLines(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.since = time.perf_counter()

        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            now = time.perf_counter()
            whole, self.since = now - self.since, now
            line = {
                "step": state.global_step,
                "step_seconds": round(whole, 3),
                "generate_seconds": round(clock.generate_seconds, 3),
                "score_seconds": round(
                    clock.generate_and_score_seconds - clock.generate_seconds, 3
                ),
                "update_seconds": round(whole - clock.generate_and_score_seconds, 3),
                "prompt_tokens": clock.prompt_tokens,
                "response_tokens": clock.response_tokens,
                "padded_tokens": clock.padded_tokens,
                "mean_score": round(clock.mean_score, 4),
                "share_exact": round(clock.share_exact, 4),
                "load_average": round(os.getloadavg()[0], 2),
                "peak_memory_gib": round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2
                ),
            }
            write_line(output, line)

    return StepLines()


def write_line(output: TextIO, line: dict[str, Any]) -> None:
    text = json.dumps(line)
    output.write(text + "\n")
    output.flush()
    print(text, flush=True)


def run(settings: Settings, output: TextIO) -> None:
    import torch
    import transformers
    import trl
    from datasets import Dataset

    torch.set_num_threads(settings.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model, padding_side="left")
    rows = read_prompts(settings, tokenizer)
    versions = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    write_line(output, {"peer": versions, "settings": dataclasses.asdict(settings)})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings.model, dtype=torch.float32, attn_implementation="sdpa"
    )
    clock = StepClock()
    with scratch_folder() as folder:
        trainer = timed_trainer(clock, cached_casts=settings.cached_casts)(
            model=model,
            reward_funcs=reward_function(clock),
            args=grpo_config(settings, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[step_lines(clock, output)],
        )
        trainer.train()


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="trl-peer-") as folder:
        yield folder


def parse(arguments: list[str] | None = None) -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--prompts", required=True, help="from prompt_order.py")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts-per-step", type=int, default=16)
    parser.add_argument("--max-response-tokens", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--cached-casts", action="store_true")
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    return Settings(**options), output


def main() -> int:
    settings, path = parse()
    # Read when torch is first imported, so set before.
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with path.open("w") as output:
        try:
            run(settings, output)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
