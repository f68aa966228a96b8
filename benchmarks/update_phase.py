"""Time of one update on the demo's shape: 16 groups of 8 responses on a 135M model, random weights.

Run: `python benchmarks/update_phase.py --threads 2`. Prints one line of JSON.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.parallel.world import World
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.rows.experience import Experience

GROUPS, SAMPLES = 16, 8
MICRO_BATCH_TOKENS = 16384
REPEATS = 5
PROMPT_TOKENS = 55
RESPONSE_TOKENS = (20, 32)
OWN_AUTOCAST = "bfloat16" if has_native_bfloat16() else "none"
"""What `training.autocast: auto` is on this processor."""


def demo_config() -> LlamaConfig:
    """The shape of SmolLM2-135M."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )


def demo_experience(vocab: int) -> Experience:
    """Random rows with a signal in every group."""
    rows = GROUPS * SAMPLES
    low, high = RESPONSE_TOKENS
    lengths = torch.randint(low, high + 1, (rows,))
    tokens = int(lengths.sum())
    row_advantages = torch.randn(rows)
    return Experience(
        prompts=list(torch.randint(vocab, (GROUPS, PROMPT_TOKENS))),
        row_groups=torch.arange(GROUPS).repeat_interleave(SAMPLES),
        response_tokens=torch.randint(vocab, (tokens,)),
        lengths=lengths,
        mask=torch.ones(tokens, dtype=torch.bool),
        rollout_logprobs=torch.zeros(tokens),
        advantages=row_advantages.repeat_interleave(lengths),
    )


def our_update(
    model: PreTrainedModel,
    rows: Experience,
    training: TrainingSpec,
    optimizer: OptimizerSpec,
    world: World | None = None,
) -> Callable[[], float]:
    """An update by GRPO's loss; its call answers the norm of the gradient."""
    head = PolicyHead(LogprobSettings(entropy="value"))
    engine = TrainEngine(model, head, training, optimizer, 100, world)
    # The loss does not ask how many there are of each.
    algorithm = AlgorithmSpec(type="grpo", prompts_per_step=GROUPS, samples_per_prompt=SAMPLES)
    objective = PolicyObjective.of(algorithm)
    return lambda: engine.update(rows, objective).values["actor/grad_norm"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--autocast", default=OWN_AUTOCAST)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = LlamaForCausalLM(demo_config())
    training = TrainingSpec(autocast=arguments.autocast, micro_batch_tokens=MICRO_BATCH_TOKENS)
    rows = demo_experience(model.config.vocab_size)
    update = our_update(model, rows, training, OptimizerSpec(learning_rate=2e-5))
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    real_tokens = sum(int(p.numel()) for p in rows.prompts) * SAMPLES + rows.num_tokens
    report = {
        "seconds": [round(value, 3) for value in seconds],
        "median_seconds": round(median, 3),
        "real_tokens_per_second": round(real_tokens / median),
        "response_tokens_per_second": round(rows.num_tokens / median),
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
