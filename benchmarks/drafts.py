"""What drafts by n-grams gain with vLLM on this machine: the same rows, with them and without.

    python benchmarks/drafts.py --model models/smollm2-135m

One engine after the other draws 1, 4 and 16 rows of two kinds. `repeating`: a program is to be
written once more, at temperature 0. `other`: prompts without a pattern, at temperature 1. Prints
one line of JSON. By kind and rows: `speedup`, processor time without drafts over that with them;
`accept_rate`, the share of guesses that were kept; `accept_length`, the tokens that a pass draws of
a row; `same_tokens`, the share of rows whose tokens are equal.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ppojob_api.v1alpha1.rollout import DraftsSpec, RolloutSpec
from ppojob_trainer.rollout.protocol import Finished, Request, SamplingParams, generation_phase
from ppojob_trainer.rollout.vllm_engine import VllmEngine

PROGRAM = """def {name}(rows):
    total_{name} = 0
    for row in rows:
        if row.{name} is None:
            continue
        total_{name} += row.{name}
        print("{name}", row.{name}, total_{name})
    return total_{name}
"""
NAMES = ("weight", "length", "price", "height", "count", "speed", "depth", "score")
LENGTH, TOKENS, ROWS = 384, 48, (1, 4, 16)


def requests(folder: Path, kind: str) -> list[Request]:
    """Two rows of each prompt."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts, temperature = [f"Tell me of {name}, please." for name in NAMES], 1.0
    if kind == "repeating":
        texts = [
            f"{(text := PROGRAM.format(name=name))}\n# once more\n{text[:40]}" for name in NAMES
        ]
        temperature = 0.0
    sampling = SamplingParams(temperature, 1.0, -1, TOKENS)
    return [
        Request(f"{number}/{sample}", tuple(tokenizer(text)["input_ids"]), sampling, sample)
        for number, text in enumerate(texts)
        for sample in range(2)
    ]


def draw(engine: VllmEngine, rows: list[Request]) -> tuple[float, list[Finished]]:
    """Seconds of processor time of a phase, and its rows in their order."""
    began, finished = time.process_time(), {}
    with generation_phase(engine) as submit:
        for row in rows:
            submit(row)
        while engine.has_work():
            finished |= {one.request_id: one for one in engine.step()}
    return time.process_time() - began, [finished[row.request_id] for row in rows]


def measure(folder: Path, dtype: str, drafts: DraftsSpec | None) -> dict[str, Any]:
    """Seconds, tokens and what came of guesses, by kind and number of rows."""
    rollout = RolloutSpec(
        dtype=dtype, max_model_tokens=LENGTH, max_sequences=16, kv_cache_gib=1, drafts=drafts
    )
    engine = VllmEngine(rollout, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine.load_weights(1, model.named_parameters())
    draw(engine, requests(folder, "other"))
    found = {}
    for kind in ("repeating", "other"):
        for rows in ROWS:
            engine.counts()
            seconds, done = draw(engine, requests(folder, kind)[:rows])
            found[f"{kind} {rows}"] = seconds, [one.tokens for one in done], engine.counts()
    engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=DraftsSpec().tokens)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # others would wait by turning round, which is processor time
    drafts = DraftsSpec(tokens=asked.tokens, max_rows=max(ROWS))
    plain = measure(asked.model, asked.dtype, None)
    told = {}
    for name, (seconds, tokens, counts) in measure(asked.model, asked.dtype, drafts).items():
        without, same, _ = plain[name]
        told[name] = {
            "speedup": without / seconds,
            "accept_rate": counts["kept"] / max(1, counts["guesses"]),
            "accept_length": 1 + counts["kept"] / counts["passes"],
            "same_tokens": sum(map(tuple.__eq__, tokens, same)) / len(same),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
