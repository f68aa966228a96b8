"""Time of one update or log-probability pass: ours, or with padded rows and full logits.

    python benchmarks/update_phase.py [--threads 2]
    python benchmarks/update_phase.py --device cuda --shape qwen2.5-0.5b [--way padded]
        [--only-logprobs] [--any-kernels] [--profile FILE]

Random weights and rows. The shape `demo` is SmolLM2-135M on 16 groups of 8 responses of the demo's
lengths; those of Qwen2.5 have 4 groups of 8 rows of 1,024 to 2,048 tokens. `padded` is the textbook
on the same rows: the model of transformers with `sdpa`, rows of about equal lengths padded to the
longest of a micro-batch, log-softmax over all logits of the responses. On a GPU the bits are the
same each time unless `--any-kernels` is given. Prints one line of JSON. Utilisation counts the
products that a way cannot do without: none of padding, or made again.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.deterministic import make_deterministic
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.packed_rows import pack_rows
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
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Of dense products in bfloat16, by the vendor's data sheets; by what names of GPUs hold."""
OPTIMIZER = OptimizerSpec(learning_rate=2e-5)


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


def qwen_config(hidden: int, inner: int, layers: int, heads: int) -> Qwen2Config:
    """The shape of a small Qwen2.5."""
    return Qwen2Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=32_768,
        rope_theta=1e6,
    )


@dataclass(frozen=True)
class Shape:
    """A model and the rows of a mini-batch."""

    config: Callable[[], PreTrainedConfig]
    model: type[PreTrainedModel]
    groups: int = 4
    prompt_tokens: int = 256
    response_tokens: tuple[int, int] = (768, 1792)


SHAPES = {
    "demo": Shape(demo_config, LlamaForCausalLM, GROUPS, PROMPT_TOKENS, RESPONSE_TOKENS),
    "qwen2.5-0.5b": Shape(lambda: qwen_config(896, 4864, 24, 14), Qwen2ForCausalLM),
    "qwen2.5-1.5b": Shape(lambda: qwen_config(1536, 8960, 28, 12), Qwen2ForCausalLM),
}


def demo_experience(vocab: int) -> Experience:
    """Random rows with a signal in every group."""
    return rows_of(SHAPES["demo"], vocab)


def rows_of(shape: Shape, vocab: int) -> Experience:
    """Random rows of a shape."""
    rows = shape.groups * SAMPLES
    low, high = shape.response_tokens
    lengths = torch.randint(low, high + 1, (rows,))
    tokens = int(lengths.sum())
    row_advantages = torch.randn(rows)
    return Experience(
        prompts=list(torch.randint(vocab, (shape.groups, shape.prompt_tokens))),
        row_groups=torch.arange(shape.groups).repeat_interleave(SAMPLES),
        response_tokens=torch.randint(vocab, (tokens,)),
        lengths=lengths,
        mask=torch.ones(tokens, dtype=torch.bool),
        rollout_logprobs=torch.zeros(tokens),
        advantages=row_advantages.repeat_interleave(lengths),
    )


def our_engine(
    model: PreTrainedModel,
    training: TrainingSpec,
    optimizer: OptimizerSpec,
    world: World | None = None,
) -> TrainEngine:
    head = PolicyHead(LogprobSettings(entropy="value"))
    return TrainEngine(model, head, training, optimizer, 100, world)


def our_update(
    model: PreTrainedModel,
    rows: Experience,
    training: TrainingSpec,
    optimizer: OptimizerSpec,
    world: World | None = None,
) -> Callable[[], float]:
    """An update by GRPO's loss; its call answers the norm of the gradient."""
    engine = our_engine(model, training, optimizer, world)
    # The loss does not ask how many there are of each.
    algorithm = AlgorithmSpec(type="grpo", prompts_per_step=GROUPS, samples_per_prompt=SAMPLES)
    objective = PolicyObjective.of(algorithm)
    return lambda: engine.update(rows, objective).values["actor/grad_norm"]


class PaddedRows:
    """The same work as a textbook has it; entropies are not computed."""

    def __init__(self, model: PreTrainedModel, rows: Experience, autocast: str) -> None:
        model.set_attn_implementation("sdpa")
        self._model, self._autocast = model.train(), autocast
        told = {"lr": OPTIMIZER.learning_rate, "weight_decay": OPTIMIZER.weight_decay}
        self._optimizer = torch.optim.AdamW(model.parameters(), fused=True, **told)
        self._batches = list(self._padded(rows))
        self._tokens = rows.num_tokens

    def _padded(self, rows: Experience) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Token ids, which are read, which are trained, advantages; the longest rows last."""
        assert rows.advantages is not None
        responses = rows.response_tokens.split(rows.lengths.tolist())
        advantages = rows.advantages.split(rows.lengths.tolist())
        pad = torch.nn.utils.rnn.pad_sequence
        for batch in self._plan(rows):
            prompts = [rows.prompts[int(rows.row_groups[row])] for row in batch]
            texts = [torch.cat([p, responses[row]]) for p, row in zip(prompts, batch, strict=True)]
            begun = len(prompts[0])  # prompts are equally long
            ids = pad(texts, batch_first=True)
            lengths = torch.tensor([len(text) for text in texts])
            seen = torch.arange(ids.shape[1]) < lengths[:, None]
            credit = pad([advantages[row] for row in batch], batch_first=True)
            device = self._model.device
            yield ids.to(device), seen.to(device), seen[:, begun:].to(device), credit.to(device)

    def _plan(self, rows: Experience) -> Iterator[list[int]]:
        batch: list[int] = []
        for row in rows.lengths.argsort().tolist():
            longest = int(rows.lengths[row]) + len(rows.prompts[0])
            if batch and longest * (len(batch) + 1) > MICRO_BATCH_TOKENS:
                yield batch
                batch = []
            batch.append(row)
        yield batch

    def _logprobs(self, ids: Tensor, seen: Tensor, trained: Tensor) -> Tensor:
        count, device = trained.shape[1], ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._autocast == "bfloat16"):
            told = {"attention_mask": seen.long(), "use_cache": False, "logits_to_keep": count + 1}
            logits = self._model(ids, **told).logits[:, :-1]
        found = logits.gather(-1, ids[:, -count:, None])[:, :, 0].float()
        return found - torch.logsumexp(logits.float(), -1)

    def update(self) -> float:
        for ids, seen, trained, credit in self._batches:
            logprobs = self._logprobs(ids, seen, trained)
            ratio = (logprobs - logprobs.detach()).exp()
            (-(ratio * credit * trained).sum() / self._tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(norm)

    @torch.no_grad()
    def predict(self) -> None:
        for ids, seen, trained, _ in self._batches:
            self._logprobs(ids, seen, trained).cpu()


def product_flops(model: PreTrainedModel, rows: Experience, *, shared: bool) -> float:
    """Of a forward pass: products with weights, those of attention, the output layer's."""
    config = model.config
    spans = pack_rows(rows, share_prompts=shared).spans
    tokens = sum(span.length for span in spans)
    seen = sum(
        span.length * span.prefix_length + span.length * (span.length + 1) // 2 for span in spans
    )
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    layers = sum(w.numel() for w in model.base_model.layers.parameters() if w.ndim == 2)
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * head_size * seen
    output = 2 * config.vocab_size * config.hidden_size * rows.num_tokens
    return float(2 * layers * tokens + attention + output)


def work_of(
    options: argparse.Namespace, model: PreTrainedModel, rows: Experience
) -> Callable[[], object]:
    if options.way == "padded":
        padded = PaddedRows(model, rows, options.autocast)
        return padded.predict if options.only_logprobs else padded.update
    training = TrainingSpec(autocast=options.autocast, micro_batch_tokens=MICRO_BATCH_TOKENS)
    world = World.alone(options.device)
    if options.only_logprobs:
        engine = our_engine(model, training, OPTIMIZER, world)
        return lambda: engine.predict(rows)
    return our_update(model, rows, training, OPTIMIZER, world)


def measured(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call, the first of which warms up."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def profile(work: Callable[[], object], path: Path) -> None:
    """Write what kernels and calls of one more call take."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    averages = found.key_averages()
    tables = [
        averages.table(sort_by=key, row_limit=40, max_name_column_width=90)
        for key in ("self_device_time_total", "self_cpu_time_total")
    ]
    path.write_text("\n".join(tables))


def memory_gib(device: torch.device) -> dict[str, float]:
    if device.type == "cuda":
        return {"peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}
    return {"peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--autocast")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", default="demo", choices=SHAPES)
    parser.add_argument("--way", default="ours", choices=("ours", "padded"))
    parser.add_argument("--only-logprobs", action="store_true")
    parser.add_argument("--any-kernels", action="store_true")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    options.autocast = options.autocast or ("bfloat16" if device.type == "cuda" else OWN_AUTOCAST)
    torch.set_num_threads(options.threads)
    if device.type == "cuda" and not options.any_kernels:
        make_deterministic(device)
    torch.manual_seed(0)
    shape = SHAPES[options.shape]
    with device if device.type == "cuda" else nullcontext():
        model = shape.model(shape.config())
    rows = rows_of(shape, model.config.vocab_size)
    work = work_of(options, model, rows)
    seconds = measured(work, device, options.repeats)
    median = statistics.median(seconds[1:])
    real_tokens = sum(int(p.numel()) for p in rows.prompts) * SAMPLES + rows.num_tokens
    report = {
        "seconds": [round(value, 3) for value in seconds],
        "median_seconds": round(median, 3),
        "real_tokens_per_second": round(real_tokens / median),
        "response_tokens_per_second": round(rows.num_tokens / median),
        **memory_gib(device),
    }
    name = torch.cuda.get_device_name() if device.type == "cuda" else ""
    if peak := next((rate for known, rate in PEAK_FLOPS.items() if known in name), None):
        passes = 1 if options.only_logprobs else 3
        flops = passes * product_flops(model, rows, shared=options.way == "ours")
        report |= {"device": name, "utilisation": round(flops / median / peak, 3)}
    if options.profile:
        profile(work, options.profile)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
