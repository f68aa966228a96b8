"""The step of a job of ours on TRL 1.16.0's GRPOTrainer, timed: the peer of `step_speed.py`.

    .venv-trl/bin/python benchmarks/trl_peer.py --work work.jsonl --output trl.jsonl
        [--steps 4] [--micro-batch 64] [--cached-casts]

Runs in the environment that `trl_environment.sh` makes, on what `peer_work.py` wrote. The same as
in our run: the model folder, the prompts and their order (token for token, checked), the scorer
(the very file of ours), prompts and samples a step, response limit, temperature, AdamW with its
settings, gradient clip, no KL, one iteration, token mean, autocast (bf16 or none) over fp32 weights
and the number of threads. Chosen in TRL's favour:

- all responses of a step are generated in one batch; its transformers path pads to the longest
  prompt of the batch, and the demo's prompts are equally long;
- a micro-batch as large as the machine's memory bears well (--micro-batch);
- no activation checkpointing (TRL's default is on), sdpa attention, fused AdamW, no logging.

Why each is so: docs/adr/0005-the-peer-of-the-step.md. Not used, and why: TRL's vLLM mode (it takes
vLLM 0.22 to 0.31 on accelerators; here is a CPU and 0.32); transformers' continuous batching (TRL
then casts the trained weights themselves to bf16 for good, which is another training); a compiled
model, since ours is not compiled; --cached-casts, which TRL does not offer: one autocast region
around the whole generation, so that fp32 weights are cast once a batch and not once a token. It is
there to see how much of the ratio is due to that.
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
from pathlib import Path
from typing import Any, TextIO


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is the same as in our run; the first line of the work."""

    model: str
    prompts_per_step: int
    samples_per_prompt: int
    max_response_tokens: int
    temperature: float
    clip_low: float
    clip_high: float
    learning_rate: float
    weight_decay: float
    gradient_clip: float
    autocast: str
    threads: int


@dataclasses.dataclass
class StepClock:
    """Seconds of the parts of one step, and what was computed in it."""

    generate_seconds: float = 0.0
    generate_and_score_seconds: float = 0.0
    rows: int = 1
    prompt_tokens: int = 0
    response_tokens: int = 0
    padded_tokens: int = 0
    mean_score: float = 0.0
    share_exact: float = 0.0


def read_work(path: Path) -> tuple[Settings, list[dict[str, Any]]]:
    """Settings and prompt rows of `peer_work.py`."""
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Settings(**header["settings"]), rows


def training_rows(
    rows: list[dict[str, Any]], num_rows: int, tokenizer: Any
) -> list[dict[str, str]]:
    """Rows in the order of our run; refuses prompts that TRL would tokenize otherwise."""
    if len(rows) < num_rows:
        raise ValueError(f"--work: got {len(rows)} prompts: {num_rows} are needed")
    for number, row in enumerate(rows, start=2):
        if tokenizer(row["prompt"])["input_ids"] != row["prompt_token_ids"]:
            raise ValueError(
                f"--work, line {number}: got a prompt that TRL's tokenizer reads otherwise: "
                "the two runs would not do the same work"
            )
    return [{key: row[key] for key in ("prompt", "ground_truth")} for row in rows[:num_rows]]


def grpo_config(folder: str, autocast: str, **own: Any) -> Any:
    """What every measurement of TRL shares; `own` is of the one at hand."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=autocast == "bfloat16",
        gradient_checkpointing=False,
        lr_scheduler_type="constant",
        warmup_steps=0,
        optim="adamw_torch_fused",
        loss_type="dapo",  # the mean over the tokens of the whole batch
        scale_rewards="group",
        beta=0.0,
        num_iterations=1,
        use_vllm=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
        **own,
    )


def config_of(settings: Settings, options: argparse.Namespace, folder: str) -> Any:
    rows = settings.prompts_per_step * settings.samples_per_prompt
    return grpo_config(
        folder,
        settings.autocast,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.gradient_clip,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=rows // options.micro_batch,
        num_generations=settings.samples_per_prompt,
        max_completion_length=settings.max_response_tokens,
        max_steps=options.steps,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        temperature=settings.temperature,
        top_k=0,
        top_p=1.0,
        logging_strategy="no",
    )


def reward_function(clock: StepClock) -> Any:
    """Our scorer of the demo's task behind TRL's calling convention."""
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
            clock.rows = batch["completion_mask"].size(0)
            clock.padded_tokens = batch["prompt_mask"].numel() + batch["completion_mask"].numel()
            return batch

    return TimedTrainer


def step_lines(clock: StepClock, output: TextIO, threads: int) -> Any:
    """A callback that writes one line a step; a step lasts from end to end."""
    from transformers import TrainerCallback

    class StepLines(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.since, self.cpu_since = time.perf_counter(), time.process_time()

        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            now = time.perf_counter()
            whole, self.since = now - self.since, now
            cpu_now = time.process_time()
            cpu, self.cpu_since = cpu_now - self.cpu_since, cpu_now
            line = {
                "step": state.global_step,
                "step_seconds": round(whole, 3),
                # of the threads it asked for: well below 1 on a busy machine, and no measurement
                "cpu_share": round(cpu / whole / threads, 3),
                "generate_seconds": round(clock.generate_seconds, 3),
                "score_seconds": round(
                    clock.generate_and_score_seconds - clock.generate_seconds, 3
                ),
                "update_seconds": round(whole - clock.generate_and_score_seconds, 3),
                "prompt_tokens": clock.prompt_tokens,
                "response_tokens": clock.response_tokens,
                "mean_response_tokens": round(clock.response_tokens / clock.rows, 3),
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


def run(
    settings: Settings, options: argparse.Namespace, rows: list[dict[str, Any]], output: TextIO
) -> None:
    import torch
    import transformers
    import trl
    from datasets import Dataset

    torch.set_num_threads(settings.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model, padding_side="left")
    num_rows = options.steps * settings.prompts_per_step
    dataset = Dataset.from_list(training_rows(rows, num_rows, tokenizer))
    versions = {module.__name__: module.__version__ for module in (trl, torch, transformers)}
    choices = {name: vars(options)[name] for name in ("steps", "micro_batch", "cached_casts")}
    facts = {"settings": dataclasses.asdict(settings), "choices": choices}
    write_line(output, {"peer": versions, **facts})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings.model, dtype=torch.float32, attn_implementation="sdpa"
    )
    clock = StepClock()
    with tempfile.TemporaryDirectory(prefix="trl-peer-") as folder:
        trainer = timed_trainer(clock, cached_casts=options.cached_casts)(
            model=model,
            reward_funcs=reward_function(clock),
            args=config_of(settings, options, folder),
            train_dataset=dataset,
            processing_class=tokenizer,
            callbacks=[step_lines(clock, output, settings.threads)],
        )
        trainer.train()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", required=True, type=Path, help="from peer_work.py")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=64, help="rows a forward and backward")
    parser.add_argument("--cached-casts", action="store_true", help="see above; not TRL's own")
    options = parser.parse_args()
    settings, rows = read_work(options.work)
    # Read when torch is first imported, so set before.
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with options.output.open("w") as output:
        try:
            run(settings, options, rows, output)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
