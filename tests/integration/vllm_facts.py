"""Run by test_vllm_engine.py in processes of its own: vLLM marks the process that imports it.

Usage: vllm_facts.py FOLDER OUTPUT [--rank R --ranks N --store FILE]: of one engine after
the other, or what ranks find: four with an engine each, and then with one for two of them; and two.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_phase import close_quickly, generate
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.rollout import RolloutParallelism, RolloutSpec
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of
from ppojob_trainer.models.routes import of_bytes
from ppojob_trainer.models.state_dict import named_full_adapters, named_full_tensors
from ppojob_trainer.models.transformers_modules import unify_modules
from ppojob_trainer.rollout.protocol import (
    Finished,
    Request,
    RolloutError,
    SamplingParams,
    StopTexts,
)
from ppojob_trainer.rollout.sampling import masked, penalised, processed_logprobs
from ppojob_trainer.rollout.vllm_engine import VllmEngine, vllm_arguments

VOCAB = 512
LENGTH = 128
TYPES = ("float32", "bfloat16")
ASKED: dict[str, Any] = {"max_batched_tokens": 96, "gpu_memory_share": 0.3, "enforce_eager": True}
ASKED |= {"engine_arguments": {"stream_interval": 3}}
SIZES: dict[str, Any] = {"max_model_tokens": LENGTH, "max_sequences": 64}
HERE: dict[str, Any] = {}
"""Further arguments of engines. `vllm_gpu_facts.py` has others; trainers stay on processors."""


def section(dtype: str, **changes: Any) -> RolloutSpec:
    return RolloutSpec(dtype=dtype, **{**SIZES, **changes})


@contextmanager
def engine(
    folder: Path, dtype: str, *, reads: bool = False, **changes: Any
) -> Iterator[VllmEngine]:
    """An engine with a folder's weights, from the trainer, or read by vLLM, which must be equal."""
    load_format = vllm_arguments._LOAD_FORMAT
    if reads:
        vllm_arguments._LOAD_FORMAT = "safetensors"
    try:
        opened = VllmEngine(section(dtype, **changes), folder, **HERE)
    finally:
        vllm_arguments._LOAD_FORMAT = load_format
    try:
        if reads:
            opened._is_asleep = False
        else:
            load_folder(opened, folder)
        yield opened
    finally:
        opened.close()


def load_folder(opened: VllmEngine, folder: Path) -> None:
    """Bring a folder's weights into an engine, as the trainer holds them."""
    trainer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    opened.load_weights(0, trainer.named_parameters())


def scheduler_limits(folder: Path) -> dict[str, Any]:
    """Tokens and sequences of a step, on either device: vLLM wants no fewer tokens."""
    facts = {}
    for device in ("cpu", "cuda"):
        many = section("float32", max_sequences=9000)
        config = AutoConfig.from_pretrained(folder)
        arguments = vllm_arguments.engine_args(many, config, device)
        facts[device] = [arguments.max_num_batched_tokens, arguments.max_num_seqs]
        asked = section("float32", **ASKED)
        arguments = vllm_arguments.engine_args(asked, config, device, records_experts=True)
        facts[f"{device} as asked"] = [
            arguments.max_num_batched_tokens,
            arguments.gpu_memory_utilization,
            arguments.enforce_eager,
            arguments.stream_interval,
            arguments.aux_output_config.enable_return_routed_experts,
        ]
    return facts


def text(length: int, start: int) -> tuple[int, ...]:
    """Pseudo-random tokens without the end token, 2."""
    return tuple(3 + (start * 7919 + k * k * 31 + k * 17) % (VOCAB - 3) for k in range(length))


def requests(groups: int = 6, samples: int = 4, *, length: int = 40) -> list[Request]:
    """Prompts of different lengths, `samples` rows each, drawn in different ways."""
    ways = [
        SamplingParams(1.0, 1.0, -1, 24, (2,)),
        SamplingParams(0.7, 1.0, -1, 24, tuple(range(2, 12)), repetition_penalty=1.3),
        SamplingParams(0.0, 1.0, -1, 24, repetition_penalty=0.8),
        SamplingParams(1.2, 0.9, 40, 24, (2,), min_p=0.05),
    ]
    return [
        Request(f"{g}/{s}", text(length + g, g), ways[s % 4], seed=(1 << 61) + 1000 * g + s)
        for g in range(groups)
        for s in range(samples)
    ]


def differences(
    model: LlamaForCausalLM, rows: list[Request], done: list[Finished], dtype: str
) -> list[float]:
    """|log-probability of the engine - of a plain float32 forward| of every token drawn.

    In bfloat16 a token on the edge of top-p may be kept by one side only: such rows are left out.
    """
    result: list[float] = []
    for request, response in zip(rows, done, strict=True):
        if dtype == "bfloat16" and request.sampling.top_p < 1.0:
            continue
        ids = torch.tensor([[*request.prompt, *response.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1]
        ways = [request.sampling] * len(response.tokens)
        texts = [ids[0, : len(request.prompt) + n].tolist() for n in range(len(ways))]
        if (form := request.sampling.grammar) is not None:
            begun = [response.tokens[:n] for n in range(len(ways))]
            logits = masked(logits, [replace(form, before=one).matcher() for one in begun])
        logprobs = processed_logprobs(penalised(logits, ways, texts), ways)
        taken = logprobs.gather(-1, torch.tensor(response.tokens)[:, None])[:, 0]
        result += (torch.tensor(response.logprobs) - taken).abs().tolist()
    return result


def summary(values: list[float]) -> dict[str, float]:
    return {"max": max(values), "mean": sum(values) / len(values), "tokens": len(values)}


def rows_of(done: list[Finished]) -> list[Any]:
    return [[d.tokens, d.logprobs, d.finish_reason] for d in done]


def disturb(model: LlamaForCausalLM, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator) * parameter.std()


def process_state() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "thread setter": torch.set_num_threads.__qualname__,
        "dtype": str(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "torch": torch.random.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": hash(random.getstate()),
        "environment": {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")},
    }


def marks(before: dict[str, Any]) -> list[str]:
    """What an engine changed in its process."""
    after = process_state()
    return [key for key in before if before[key] != after[key]]


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except (RolloutError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def weight_updates(folder: Path, dtype: str, export: Path) -> dict[str, Any]:
    """Three updates of the trainer, each brought into the engine; then a fresh engine."""
    facts: dict[str, Any] = {}
    trainer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = requests()
    with engine(folder, dtype) as opened:
        done = generate(opened, rows)
        facts["rows"] = rows_of(done)
        facts["again"] = rows_of(generate(opened, rows)) == facts["rows"]
        facts["start"] = summary(differences(trainer, rows, done, dtype))
        for version in (1, 2, 3):
            disturb(trainer, version)
            before = process_state()
            opened.load_weights(version, trainer.named_parameters())
            facts["marks of load_weights"] = marks(before)
            done = generate(opened, rows)
            facts[f"update {version}"] = summary(differences(trainer, rows, done, dtype))
        facts["versions"] = sorted({d.policy_version for d in done} | {opened.policy_version})
        updated = rows_of(done)
        trainer.save_pretrained(export)
        for parameter in trainer.parameters():
            parameter.data.zero_()
        facts["aliased"] = rows_of(generate(opened, rows)) != updated
    with engine(export, dtype, reads=True) as fresh:
        facts["fresh equal"] = rows_of(generate(fresh, rows)) == updated
    with engine(folder, dtype, reads=True) as fresh:
        facts["first equal"] = rows_of(generate(fresh, rows)) == facts["rows"]
    return facts


def adapted_model(folder: Path, lora: LoraSpec, scale: float) -> torch.nn.Module:
    """A model whose adapters have learned something."""
    model = load_model(folder, lora=lora, seed=1)
    learn(model, scale)
    return model


def learn(model: torch.nn.Module, scale: float, seed: int = 2) -> None:
    generator = torch.Generator().manual_seed(seed)
    for adapter in adapters_of(model).values():
        adapter.b.normal_(std=scale, generator=generator)


def beside(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights without adapters, and these behind them."""
    yield from named_full_tensors(model, merges=False)
    yield from named_full_adapters(model)


def merged_adapters(folder: Path, dtype: str) -> dict[str, Any]:
    """Adapters that have learned something, merged on their way into the engine."""
    trainer = adapted_model(folder, LoraSpec(rank=8), 0.05)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = requests()
    with engine(folder, dtype) as opened:
        opened.load_weights(1, named_full_tensors(trainer))
        done = generate(opened, rows)
    return {
        "trainer": summary(differences(trainer, rows, done, dtype)),
        "base": summary(differences(base, rows, done, dtype)),
    }


def adapters_beside(folder: Path, dtype: str, tensor: int = 1) -> dict[str, Any]:
    """Adapters that the engine computes with: all weights come once, then the adapters alone.

    Of a rank that vLLM fills up, of some layers of those that it packs, and counted otherwise.
    """
    lora = LoraSpec(
        rank=5,
        alpha=3.0,
        rank_stabilized=True,
        target_modules=("q_proj", "v_proj", "up_proj", "o_proj"),
    )
    trainer, rows = adapted_model(folder, lora, 0.1), requests()
    layout = RolloutParallelism(tensor=tensor)
    facts: dict[str, Any] = {}
    opened = VllmEngine(section(dtype, parallelism=layout), folder, lora=lora, **HERE)
    opened.load_weights(1, beside(trainer))
    facts["first"] = summary(differences(trainer, rows, generate(opened, rows), dtype))
    learn(trainer, 0.1, seed=3)
    before = [adapter.b.clone() for adapter in adapters_of(trainer).values()]
    opened.load_weights(2, named_full_adapters(trainer))
    done = generate(opened, rows)
    facts["update"] = summary(differences(trainer, rows, done, dtype))
    facts["rows"] = rows_of(done)
    after = [adapter.b for adapter in adapters_of(trainer).values()]
    facts["aliased"] = not all(map(torch.equal, before, after))
    opened.load_weights(3, beside(trainer))
    facts["all again"] = rows_of(generate(opened, rows)) == facts["rows"]
    opened.close()
    return facts


def small_adapters(folder: Path) -> dict[str, float]:
    """How much of what small adapters change two engines of bfloat16 keep: 0 nothing, 1 all.

    All weights below are 2^-4 or its negative, and adapters change each by less than half a digit.
    Measured at the most likely next token of many prompts: the changes of their log-probabilities,
    projected upon those of float32 forwards.
    """
    lora = LoraSpec(rank=1, alpha=1.0)
    base, own = load_model(folder), folder.with_name("of equal size")
    for name, weight in base.named_parameters():
        if name.endswith("_proj.weight"):
            weight.data.sign_().mul_(2.0**-4)
    base.bfloat16().save_pretrained(own)
    base, trainer = load_model(own), adapted_model(own, lora, 1.0)
    for adapter in adapters_of(trainer).values():
        adapter.a.sign_()
        adapter.b.sign_().mul_(0.9 * 2.0**-13)
    rows = [Request(f"{n}", text(24, n), SamplingParams(0.0, 1.0, -1, 1), n) for n in range(400)]

    def drawn(opened: VllmEngine) -> dict[tuple[int, int], float]:
        done = generate(opened, rows)
        return {(n, one.tokens[0]): one.logprobs[0] for n, one in enumerate(done)}

    def forward(model: torch.nn.Module, at: tuple[int, int]) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([rows[at[0]].prompt])).logits[0, -1]
        return float(logits.log_softmax(-1)[at[1]])

    def kept(before: dict[tuple[int, int], float], after: dict[tuple[int, int], float]) -> float:
        places = sorted(before.keys() & after.keys())
        true = torch.tensor([forward(trainer, at) - forward(base, at) for at in places])
        found = torch.tensor([after[at] - before[at] for at in places])
        return float(found @ true / (true @ true))

    with engine(own, "bfloat16") as opened:
        before = drawn(opened)
        opened.load_weights(1, named_full_tensors(trainer))
        merged = kept(before, drawn(opened))
    opened = VllmEngine(section("bfloat16"), own, lora=lora)
    opened.load_weights(1, beside(trainer))
    apart = kept(before, drawn(opened))
    opened.close()
    return {"merged": merged, "beside": apart}


def behaviour(folder: Path, dtype: str) -> dict[str, Any]:
    """What the protocol promises beyond numbers, on one engine; it ends unusable."""
    before = process_state()
    opened = VllmEngine(section(dtype), folder, **HERE)
    facts: dict[str, Any] = {"marks of start": marks(before)}
    facts["born"] = refusal(lambda: opened.submit(requests()[0]))
    load_folder(opened, folder)
    cached: list[int] = []
    finished = opened._finished

    def counted(output: Any, end: int | None = None) -> Finished:
        cached.append(output.num_cached_tokens)
        return finished(output, end)

    opened._finished = counted  # type: ignore[method-assign]
    rows = [
        Request(f"{n}", text(70, n // 8), SamplingParams(1.0, 1.0, -1, 20), seed=n)
        for n in range(64)
    ]
    done = generate(opened, rows)
    facts["marks of generate"] = marks(before)
    facts["cached"] = sorted(cached)
    facts["distinct"] = len({d.tokens for d in done})
    facts |= interruptions(opened, rows, done)
    facts["by texts"] = ended_by_texts(opened, rows, done)
    facts["refused"] = [
        refusal(lambda: opened.submit(replace(rows[0], prompt=(VOCAB,)))),
        refusal(lambda: opened.submit(replace(rows[0], prompt=text(LENGTH, 0)))),
    ]
    opened.sleep()
    opened.sleep()
    facts["asleep"] = refusal(lambda: opened.submit(rows[0]))
    load_folder(opened, folder)
    facts["awake"] = rows_of(generate(opened, rows)) == rows_of(done)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.norm.weight.data.fill_(torch.nan)
    opened.load_weights(7, model.named_parameters())
    facts["no numbers"] = refusal(lambda: generate(opened, rows[:1]))
    names = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    names.pop("model.norm.weight")
    facts["missing"] = refusal(lambda: opened.load_weights(1, names.items()))
    facts["unusable"] = refusal(lambda: opened.submit(rows[0]))
    opened.close()
    opened.close()
    return facts


def interruptions(opened: VllmEngine, rows: list[Request], done: list[Finished]) -> dict[str, Any]:
    """Rows that are aborted, and calls that come while rows are on their way."""
    facts: dict[str, Any] = {}
    for request in rows[:4]:
        opened.submit(request)
    for _ in range(5):
        opened.step()
    opened.abort("1")
    opened.abort("never heard of")
    facts["busy"] = [
        refusal(lambda: opened.load_weights(9, [])),
        refusal(opened.reset_cache),
        refusal(lambda: generate(opened, rows)),
        refusal(lambda: opened.submit(rows[0])),
    ]
    rest: list[Finished] = []
    while opened.has_work():
        rest += opened.step()
    facts["aborted"] = {**asdict(rest[0]), "experts": rest[0].experts.hex()}
    facts["unaborted prefix"] = done[1].tokens[:5]
    facts["spared"] = [d.tokens for d in rest[1:]] == [done[n].tokens for n in (0, 2, 3)]
    return facts


def ended_by_texts(opened: VllmEngine, rows: list[Request], done: list[Finished]) -> dict[str, Any]:
    """Rows that end with the second of two tokens that stand behind each other, or never."""
    first, second = done[0].tokens[2:4]
    texts = StopTexts((f"<{first}><{second}>",), lambda ids: "".join(f"<{id_}>" for id_ in ids))
    asked = [replace(r, sampling=replace(r.sampling, stop_texts=texts)) for r in rows]
    last = replace(asked[0], sampling=replace(asked[0].sampling, max_tokens=4))
    return {
        "whole": rows_of(done),
        "cut": rows_of(generate(opened, asked)),
        "at the limit": rows_of(generate(opened, [last])),
        "pair": [first, second],
    }


def unknown_weight(folder: Path) -> str:
    """What is said of an update that brings a weight which the model does not have."""
    with engine(folder, "float32") as opened:
        unknown = {"model.nothing.weight": torch.zeros(1)}
        return refusal(lambda: opened.load_weights(1, unknown.items()))


def pressure(folder: Path) -> dict[str, Any]:
    """More prompt tokens than one step prefills, and a cache too small for all rows."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = requests(groups=28, samples=4, length=70)  # 9,436 tokens without sharing
    alone = [replace(row, prompt=(3 + n % 500, *row.prompt[1:])) for n, row in enumerate(rows)]
    with engine(folder, "float32", max_sequences=128) as roomy:
        many = generate(roomy, alone)
    block = 32 * 2 * 2 * 2 * 32 * 4  # tokens * (keys, values) * layers * heads * width * bytes
    with engine(folder, "float32", kv_cache_gib=20 * block / 2**30) as tight:
        squeezed = generate(tight, alone)
    return {
        "many": summary(differences(model, alone, many, "float32")),
        "squeezed": summary(differences(model, alone, squeezed, "float32")),
        "same tokens": sum(a.tokens == b.tokens for a, b in zip(many, squeezed, strict=True)),
        "rows": len(alone),
    }


def all_facts(folder: Path, output: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"behaviour": behaviour(folder / "tied", "float32")}
    facts["behaviour"]["unknown"] = unknown_weight(folder / "tied")
    facts["limits"] = scheduler_limits(folder / "tied")
    facts["without float16"] = sorted(
        sys.modules["vllm.config.model"]._FLOAT16_NOT_SUPPORTED_MODELS
    )
    facts["other device"] = refusal(
        lambda: VllmEngine(section("float32"), folder / "tied", device="cuda")
    )
    for kind in ("tied", "untied"):
        for dtype in TYPES:
            export = output.parent / f"export-{kind}-{dtype}"
            facts[f"{kind} {dtype}"] = weight_updates(folder / kind, dtype, export)
    facts["adapters"] = {d: merged_adapters(folder / "untied", d) for d in TYPES}
    facts["adapters beside"] = {d: adapters_beside(folder / "tied", d) for d in TYPES}
    facts["small adapters"] = small_adapters(folder / "untied")
    facts["pressure"] = pressure(folder / "tied")
    return facts


def own_engine(folder: Path, rank: int) -> dict[str, Any]:
    """The same rows as `all_facts` draws first, with the global generators elsewhere."""
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    facts: dict[str, Any] = {}
    for dtype in TYPES:
        with engine(folder / "tied", dtype) as opened:
            torch.rand(7 + rank)
            facts[dtype] = rows_of(generate(opened, requests()))
    return facts


def shared_engine(folder: Path, kind: str) -> dict[str, Any]:
    """What an engine of several ranks draws by the weights of an update, on this rank."""
    trainer = AutoModelForCausalLM.from_pretrained(folder / kind, dtype=torch.float32)
    layout, rows = RolloutParallelism(tensor=2), requests()
    with engine(folder / kind, "float32", parallelism=layout) as opened:
        disturb(trainer, seed=1)
        opened.load_weights(1, trainer.named_parameters())
        done = generate(opened, rows)
        again = rows_of(generate(opened, rows)) == rows_of(done)
    found = summary(differences(trainer, rows, done, "float32"))
    return {kind: {**found, "rows": rows_of(done), "again": again}}


def shared_engines(folder: Path) -> dict[str, Any]:
    """The same of a model with a head of its own, of experts, and of adapters."""
    facts = shared_engine(folder, "one key head")
    for kind, ranks in (("cut experts", 1), ("dealt experts", 2)):
        shared = RolloutParallelism(tensor=2, expert=ranks)
        facts[kind] = told_experts(folder / "mixture", shared)
    apart = adapters_beside(folder / "tied", "float32", tensor=2)
    facts["adapters"] = {**apart["update"], "rows": apart["rows"], "again": apart["all again"]}
    return facts


def told_experts(folder: Path, layout: RolloutParallelism) -> dict[str, Any]:
    """Which experts tokens went to, and for how many those are of a plain forward pass."""
    trainer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    disturb(trainer, seed=1)
    sent, rows = deepcopy(trainer), requests()
    unify_modules(sent)
    sized = section("float32", parallelism=layout)
    opened = VllmEngine(sized, folder, records_experts=True, **HERE)
    opened.load_weights(1, named_full_tensors(sent, merges=False))
    done = generate(opened, rows)
    again = [row.experts for row in generate(opened, rows)] == [row.experts for row in done]
    opened.close()
    equal, total = 0, 0
    for request, row in zip(rows, done, strict=True):
        read = [*request.prompt, *row.tokens][:-1]
        told = of_bytes(row.experts, len(read), trainer.config).long()
        with torch.no_grad():
            logits = trainer(torch.tensor([read]), output_router_logits=True).router_logits
        chosen = torch.stack(logits, dim=1).topk(told.shape[-1]).indices
        equal += int((told.sort().values == chosen.sort().values).all(-1).sum())
        total += told[..., 0].numel()
    found = summary(differences(trainer, rows, done, "float32"))
    told_all = [row.experts.hex() for row in done]
    return {**found, "rows": rows_of(done), "experts": told_all, "again": again} | {
        "experts of a forward pass": [equal, total]
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    close_quickly()
    dist = torch.distributed  # noqa: TID251  # the world of the role that the engine must respect
    if arguments.store:
        where = f"file://{arguments.store}"
        ranks = {"rank": arguments.rank, "world_size": arguments.ranks}
        dist.init_process_group("gloo", init_method=where, **ranks)
        if arguments.ranks == 4:
            facts = own_engine(arguments.folder, arguments.rank)
            facts |= shared_engine(arguments.folder, "tied")
        else:
            facts = shared_engines(arguments.folder)
    else:
        facts = all_facts(arguments.folder, arguments.output)
    facts["world after close"] = dist.is_initialized()
    if arguments.store:
        ones = torch.ones(1)
        dist.all_reduce(ones)
        facts["sum over the world"] = float(ones)
        dist.destroy_process_group()
    arguments.output.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
