"""Worlds whose ranks share the experts of a layer: what they are tried with, and what they find.

Run: `python expert_worlds.py FOLDER cover|whole LAYOUT...`. The folder holds what `save_models`
writes and checkpoints of one rank; results go into `<LAYOUT>/<case>-<rank>.safetensors`.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from training_cases import (
    CASES,
    EXPERT_LAYOUTS,
    load,
    make_engine,
    name_of,
    objective,
    of_all_stages,
    rows_of_rank,
    rows_of_step,
    run_case,
)
from training_ranks import run_world
from training_scenarios import run_checkpoint, run_foreign_checkpoints, run_offloaded

from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.tensors import write_tensors
from ppojob_trainer.models.experts import experts_of
from ppojob_trainer.models.state_dict import broadcast_by_holders, every_adapter, every_tensor
from ppojob_trainer.parallel.boxes import full_tensor, local_part
from ppojob_trainer.parallel.world import World

TRIED = {
    "e2": (
        *("experts_replayed", "experts_recomputed", "experts_by_muon", "stacks_replayed"),
        *("adapters_of_experts", "adapters_of_stacks"),
    ),
    "2x1s2e2": ("experts", "stacks_replayed", "adapters_of_stacks"),
    "2t2e2": ("experts", "stacks_replayed", "adapters_of_experts", "adapters_of_stacks"),
    "2e2p2": ("experts_recomputed", "stacks_replayed", "adapters_of_stacks"),
}
"""The cases that each layout is tried with."""
SAVED = ("experts_by_muon", "stacks_replayed", "adapters_of_stacks")
"""Those of checkpoints and exports."""
COVER = {"e2": SAVED, "2t2e2": ("stacks_replayed",)}
"""The layouts of `make test`, and which of `SAVED` each has; `e2` is always among those that are
run, and its checkpoints are read.
"""


def run_one_sided(root: Path, world: World, name: str) -> dict[str, Tensor]:
    """The first gradient where all tokens go to the first two experts."""
    case = CASES[name]
    model = load(case, root, world)
    engine = make_engine(model, case, world)
    rows = rows_of_step().select(rows_of_rank(case.owners, world.rank, world.dims))
    engine.predict(rows, records=True)
    for chosen in (rows.experts, rows.prompt_experts):
        assert chosen is not None, "they were asked for"
        chosen.copy_(torch.arange(2))
    engine.update(rows, objective())
    own = {
        name: full_tensor(p.grad).clone() for name, p in model.named_parameters() if p.requires_grad
    }
    return of_all_stages(world, own)


def run_gathered(root: Path, world: World, name: str) -> dict[str, Tensor]:
    """How many numbers of experts a rank has at most while their layers compute."""
    case, most = CASES[name], [0]
    model = load(case, root, world)
    engine = make_engine(model, case, world)

    def count(experts: nn.Module, _inputs: object) -> None:
        most[0] = max(most[0], sum(local_part(one).numel() for one in experts.parameters()))

    for experts in experts_of(model):
        experts.register_forward_pre_hook(count)
    engine.predict(rows_of_step())
    return {"most": torch.tensor(most[0])}


def run_export(root: Path, world: World, name: str) -> dict[str, Tensor]:
    model = load(CASES[name], root, world)
    target = root / f"export-of-{name_of(world.dims)}-{name}" if world.rank == 0 else None
    wrap_join = partial(broadcast_by_holders, model)
    folder = root / CASES[name].model
    export_model(
        target,
        every_tensor(model),
        model_folder=folder,
        dtype=torch.bfloat16,
        adapters=every_adapter(model),
        wrap_join=wrap_join,
    )
    return {}


def write_results(results: Path, root: Path, world: World, *, is_whole: bool) -> None:
    def write(name: str, found: dict[str, Tensor]) -> None:
        write_tensors(results / f"{name}-{world.rank}.safetensors", found)

    for name in TRIED[results.name]:
        write(name, run_case(CASES[name], root, world))
    saved = SAVED if is_whole else COVER[results.name]
    for name in saved:
        write(f"checkpoint-{name}", run_checkpoint(root, world, name))
        run_export(root, world, name)
        write(f"gathered-{name}", run_gathered(root, world, name))
        if results.name == "e2":
            write(f"again-{name}", run_case(CASES[name], root, world))
            write(f"one-sided-{name}", run_one_sided(root, world, name))
            write(f"offloaded-{name}", run_offloaded(root, world, name))
    written = [(name, "1" if results.name == "e2" else "e2") for name in saved]
    write("foreign", run_foreign_checkpoints(root, world, written))


if __name__ == "__main__":
    folder, tried, *layouts = sys.argv[1:]
    work = partial(write_results, is_whole=tried == "whole")
    for layout in layouts:
        run_world(Path(folder) / layout, EXPERT_LAYOUTS[layout], work)
