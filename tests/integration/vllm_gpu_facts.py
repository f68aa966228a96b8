"""Run by test_vllm_on_a_gpu.py: what engines on a GPU promise, each in a process of its own.

The memory that vLLM gives back when it sleeps is that of one engine a process. On a processor the
same is found out by: vllm_gpu_facts.py FOLDER OUTPUT cpu NAME...

Usage: vllm_gpu_facts.py FOLDER OUTPUT
"""

import json
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from traceback import format_exc
from typing import Any

import torch
import vllm_facts as facts
from engine_phase import generate
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from vllm_family import difference

from ppojob_trainer.models.families import FAMILIES

TOGETHER = 8
"""Engines that are there at one time."""
VARIANTS = {
    "eager float32": ("tied", "float32", True),
    "eager bfloat16": ("tied", "bfloat16", True),
    "compiled bfloat16": ("tied", "bfloat16", False),
    "compiled untied bfloat16": ("untied", "bfloat16", False),
}


def trainer(folder: Path, updates: int) -> LlamaForCausalLM:
    """The model of a folder behind so many updates."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for version in range(1, 1 + updates):
        facts.disturb(model, version)
    return model


def updated(folder: Path, kind: str, dtype: str, eager: bool) -> dict[str, Any]:
    """What an engine draws by the first weights, again, and by those of three updates."""
    rows, found = facts.requests(), {}
    with facts.engine(folder / kind, dtype, enforce_eager=eager) as opened:
        done = generate(opened, rows)
        found["first"] = facts.rows_of(done)
        found["again"] = facts.rows_of(generate(opened, rows)) == found["first"]
        for version in range(4):
            model = trainer(folder / kind, version)
            if version:
                opened.load_weights(version, model.named_parameters())
                done = generate(opened, rows)
            differences = facts.differences(model, rows, done, dtype)
            found[f"update {version}"] = facts.summary(differences)
    return {**found, "last": facts.rows_of(done)}


def anew(folder: Path, kind: str, dtype: str, eager: bool, updates: int) -> list[Any]:
    """What an engine draws by weights that vLLM itself has read from a folder."""
    own = folder / f"{kind} {dtype} {eager} {updates}"
    trainer(folder / kind, updates).save_pretrained(own)
    with facts.engine(own, dtype, reads=True, enforce_eager=eager) as opened:
        return facts.rows_of(generate(opened, facts.requests()))


def free() -> float:
    """GiB of the GPU that nobody holds."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / 2**30


def asleep(folder: Path) -> dict[str, Any]:
    """How much memory an engine gives back, and what it draws when it has weights again."""
    rows = facts.requests()
    with facts.engine(folder / "tied", "bfloat16", kv_cache_gib=4.0, enforce_eager=True) as opened:
        done = generate(opened, rows)
        awake = free()
        opened.sleep()
        given_back = free() - awake
        facts.load_folder(opened, folder / "tied")
        again = facts.rows_of(generate(opened, rows)) == facts.rows_of(done)
    return {"given back": given_back, "again": again}


def tasks(folder: Path, device: str) -> dict[str, Callable[[], Any]]:
    """All that is found out, by its name."""
    named: dict[str, Callable[[], Any]] = {}
    for name, way in VARIANTS.items():
        named[name] = partial(updated, folder, *way)
        named[f"{name}, first"] = partial(anew, folder, *way, 0)
        named[f"{name}, last"] = partial(anew, folder, *way, 3)
    named["adapters"] = partial(facts.adapters_beside, folder / "tied", "bfloat16")
    named["behaviour"] = partial(facts.behaviour, folder / "tied", "bfloat16")
    if device == "cuda":
        named["asleep"] = partial(asleep, folder)
    for family in FAMILIES:
        named[family] = partial(difference, family, folder / family, device)
    return named


def found(folder: Path, device: str, name: str) -> Any:
    """What came of a task, or how it failed."""
    facts.HERE["device"] = device
    facts.SIZES["kv_cache_gib"] = 0.25
    torch.set_num_threads(1)
    try:
        return tasks(folder, device)[name]()
    except Exception:  # which the test of this task tells
        return format_exc()


def main(folder: Path, output: Path, device: str, names: list[str]) -> None:
    names = names or list(tasks(folder, device))
    with multiprocessing.get_context("spawn").Pool(TOGETHER, maxtasksperchild=1) as pool:
        found_out = pool.map(partial(found, folder, device), names, chunksize=1)
    output.write_text(json.dumps(dict(zip(names, found_out, strict=True))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or ["cuda"])[0], sys.argv[4:])
