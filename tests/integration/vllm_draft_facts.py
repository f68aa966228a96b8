"""Run by test_vllm_drafts.py in processes of its own: what engines draw with drafts and without.

Usage: vllm_draft_facts.py FOLDER OUTPUT [--rank R --store FILE]: of one engine after the other, or
what two ranks of one engine draw.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_jobs
import torch
from engine_phase import close_quickly, generate
from llguidance import LLMatcher, LLTokenizer
from transformers import AutoModelForCausalLM
from vllm_facts import (
    LENGTH,
    TYPES,
    VOCAB,
    adapted_model,
    beside,
    differences,
    engine,
    rows_of,
    section,
    text,
)

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.rollout import DraftsSpec, RolloutParallelism
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.rollout.protocol import Request, SamplingParams, StopTexts
from ppojob_trainer.rollout.structured_output import Grammar
from ppojob_trainer.rollout.vllm_engine import VllmEngine

DRAFTS = DraftsSpec(tokens=4, shortest_match=1, max_rows=64)
LAST = 40
NAMES = ["<|pad|>", "<|begin|>", "<|end|>", *map(chr, range(32, 127))]
NAMES += [f"{n}" for n in range(10, VOCAB - len(NAMES) + 10)]
"""The tokens of the models, of which the form below knows the texts."""
FORM = r"(ab|c[0-9]+ |xyz )+"


def _grammar() -> Grammar:
    """The form over the tokens above, the first three of which are control tokens."""
    marks = [{"id": n, "content": name, "special": True} for n, name in enumerate(NAMES[:3])]
    tokenizer = {
        "model": {"type": "BPE", "vocab": {name: n for n, name in enumerate(NAMES)}, "merges": []},
        "added_tokens": [{**_FLAGS, **mark} for mark in marks],
        **tiny_jobs.WITH_BYTES,
    }
    read = LLTokenizer(json.dumps(tokenizer), eos_token=[2])
    return Grammar(LLMatcher.grammar_from_regex(FORM), read)


_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
WAYS = [
    SamplingParams(1.0, 1.0, -1, LAST, (2,)),
    SamplingParams(0.7, 1.0, -1, LAST, tuple(range(2, 12)), repetition_penalty=1.3),
    SamplingParams(0.0, 1.0, -1, LAST),
    SamplingParams(0.0, 1.0, -1, LAST, repetition_penalty=0.8),
    SamplingParams(0.3, 0.9, 40, LAST, (2,)),
    SamplingParams(0.05, 1.0, -1, LAST),
    SamplingParams(0.3, 1.0, -1, LAST, (2,), grammar=_grammar()),
    SamplingParams(1.0, 0.9, -1, LAST, (2,), grammar=_grammar(), repetition_penalty=1.1),
]


def repeating(length: int, start: int) -> tuple[int, ...]:
    """A text that says the same again and again."""
    said = text(7, start)
    return tuple(said[place % len(said)] for place in range(length))


def requests(groups: int = 8) -> list[Request]:
    """Prompts that repeat themselves, the longest to the full length; each drawn in every way."""
    return [
        Request(f"{g}/{w}", repeating(LENGTH - LAST - g, g), way, seed=(1 << 61) + 1000 * g + w)
        for g in range(groups)
        for w, way in enumerate(WAYS)
    ]


def drawn(opened: VllmEngine, rows: Sequence[Request]) -> list[Any]:
    done = generate(opened, rows)
    return [[*row, one.experts.hex()] for row, one in zip(rows_of(done), done, strict=True)]


def pair(folder: Path, dtype: str, **changes: Any) -> dict[str, Any]:
    """What is drawn without drafts and with them, in several companies."""
    found: dict[str, Any] = {}
    for name, drafts in (("without", None), ("with", DRAFTS)):
        with engine(folder, dtype, drafts=drafts, **changes) as opened:
            rows = requests()
            found[name] = drawn(opened, rows)
            found[f"counts {name}"] = opened.counts()
            alone = [row for one in rows[: len(WAYS)] for row in drawn(opened, [one])]
            found[f"alone {name}"] = alone
            found[f"again {name}"] = drawn(opened, rows)
    return found


def of_a_form(folder: Path) -> dict[str, Any]:
    """Texts and ends of rows that have the form, and how far their log-probabilities are off."""
    rows = [row for row in requests() if row.sampling.grammar is not None]
    with engine(folder, "float32") as opened:
        done = generate(opened, rows)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {
        "texts": ["".join(NAMES[token] for token in one.tokens) for one in done],
        "ends": [one.finish_reason for one in done],
        "form": f"({FORM}){re.escape(NAMES[2])}",
        "off": max(differences(model, rows, done, "float32")),
    }


def ended(folder: Path) -> dict[str, Any]:
    """Rows that end by a text of two tokens, and one that is taken out after three steps."""
    found: dict[str, Any] = {}
    for name, drafts in (("without", None), ("with", DRAFTS)):
        with engine(folder, "float32", drafts=drafts) as opened:
            rows = requests(2)
            whole = generate(opened, rows)
            first, second = whole[2].tokens[12:14]
            sought = (f"<{first}><{second}>",)
            texts = StopTexts(sought, lambda ids: "".join(f"<{id_}>" for id_ in ids))
            cut = [replace(r, sampling=replace(r.sampling, stop_texts=texts)) for r in rows]
            found[f"by texts {name}"] = drawn(opened, cut)
            found[f"whole {name}"] = rows_of(whole)
            for row in rows:
                opened.submit(row)
            for _ in range(3):
                opened.step()
            opened.abort("0/2")
            rest = opened.step()
            while opened.has_work():
                rest += opened.step()
            taken = next(row for row in rest if row.request_id == "0/2")
            found[f"aborted {name}"] = rows_of([taken])[0]
            others = [row for row in rest if row is not taken]
            others.sort(key=lambda row: [r.request_id for r in rows].index(row.request_id))
            found[f"spared {name}"] = rows_of(others)
    return found


def guessed_in_company(folder: Path) -> dict[str, Any]:
    """Guesses of as many rows as may have some, of one row more, and of many rows."""
    greedy = [row for row in requests() if row.sampling == WAYS[2]]
    found: dict[str, Any] = {"guesses": []}
    with engine(
        folder, "float32", drafts=DraftsSpec(tokens=4, shortest_match=1, max_rows=5)
    ) as opened:
        for rows in (5, 6):
            generate(opened, greedy[:rows])
            found["guesses"].append(opened.counts()["guesses"])
        shorter = [
            replace(row, sampling=replace(row.sampling, max_tokens=LAST if n < 5 else 12))
            for n, row in enumerate(requests())
        ]
        found["tokens"] = [row[0] for row in drawn(opened, shorter)]
        found["counts"] = opened.counts()
    return found


def with_adapters(folder: Path) -> dict[str, Any]:
    lora = LoraSpec(rank=4)
    found = {}
    for name, drafts in (("without", None), ("with", DRAFTS)):
        opened = VllmEngine(section("float32", drafts=drafts), folder, lora=lora)
        opened.load_weights(1, beside(adapted_model(folder, lora, 0.1)))
        found[name] = drawn(opened, requests())
        found[f"counts {name}"] = opened.counts()
        opened.close()
    return found


def with_experts(folder: Path) -> dict[str, Any]:
    found = {}
    for name, drafts in (("without", None), ("with", DRAFTS)):
        opened = VllmEngine(section("float32", drafts=drafts), folder, records_experts=True)
        opened.load_weights(1, named_full_tensors(load_model(folder), merges=False))
        found[name] = drawn(opened, requests())
        found[f"counts {name}"] = opened.counts()
        opened.close()
    return found


def shared(folder: Path) -> dict[str, Any]:
    """What an engine of two ranks draws, on this rank."""
    found = {}
    for name, drafts in (("without", None), ("with", DRAFTS)):
        layout = RolloutParallelism(tensor=2)
        with engine(folder, "float32", drafts=drafts, parallelism=layout) as opened:
            found[name] = drawn(opened, requests())
            found[f"counts {name}"] = opened.counts()
    return found


def all_facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {dtype: pair(folder / "tied", dtype) for dtype in TYPES}
    block = 32 * 2 * 2 * 2 * 32 * 4  # as in vllm_facts.pressure
    # Too few blocks for all rows, and too few tokens a step for all guesses.
    tight = {"kv_cache_gib": 20 * block / 2**30, "max_batched_tokens": 128, "max_sequences": 100}
    facts["squeezed"] = pair(folder / "tied", "float32", **tight)
    facts["in company"] = guessed_in_company(folder / "tied")
    facts["of a form"] = of_a_form(folder / "tied")
    facts["ended"] = ended(folder / "tied")
    facts["adapters"] = with_adapters(folder / "tied")
    facts["experts"] = with_experts(folder / "mixture")
    return facts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    close_quickly()
    if arguments.store:
        dist = torch.distributed  # noqa: TID251  # the world of the role that the engine is in
        where = f"file://{arguments.store}"
        dist.init_process_group("gloo", init_method=where, rank=arguments.rank, world_size=2)
        facts = shared(arguments.folder / "tied")
        dist.destroy_process_group()
    else:
        facts = all_facts(arguments.folder)
    arguments.output.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
