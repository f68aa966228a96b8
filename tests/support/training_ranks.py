"""The ranks of the worlds in `tests/unit/parallel/test_ranks_train.py`; also their cases and rows.

Run: `python training_ranks.py FOLDER LAYOUT...`. The folder holds what `save_models` writes and a
checkpoint of the layout before the first; results go into `<LAYOUT>/<case>-<rank>.safetensors`.
Ranks are forked: PyTorch is imported once for all of them.
"""

import multiprocessing
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tiny_models import NAMES, TEMPLATE, TWO_LAYERS, make_model, save_model, save_tokenizer
from torch import Tensor
from transformers import LlamaForSequenceClassification, PreTrainedModel

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import LoraSpec, OptimizerSpec, TrainingSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.files import FileEntry, sha256_of
from ppojob_trainer.checkpoint.tensors import read_parts, write_shard, write_tensors
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.optimizer import optimizer_boxes
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.score_engine import Answer, ScoreEngine
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.errors import ConfigError, PPOJobError
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.models.load import load_model, load_reward_model, load_value_model
from ppojob_trainer.models.lora import B, adapters_of
from ppojob_trainer.models.state_dict import (
    hf_named_tensors,
    load_named_tensors,
    named_full_tensors,
    trained_tensors,
)
from ppojob_trainer.parallel.boxes import box_of, whole
from ppojob_trainer.parallel.collectives import largest_over_ranks, sum_over_ranks
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.fsdp import fill
from ppojob_trainer.parallel.world import MeetingPoint, World, open_world
from ppojob_trainer.rows.experience import Experience

VOCABULARY = 97  # not a multiple of any number of ranks
GROUPS, SAMPLES = 5, 3
WHOLE_BUDGET = 10_000


@dataclass(frozen=True)
class Case:
    """One way of computing the same two updates."""

    owners: tuple[int, ...]  # the rank of each group, of as many as there are
    budget: int = WHOLE_BUDGET  # tokens of a micro-batch
    model: str = "tied"
    autocast: str = "none"
    recompute: bool = False
    broken: bool = False
    lora: LoraSpec | None = None


CASES = {
    "even": Case((0, 1, 0, 1, 0)),
    "spread": Case((0, 3, 1, 2, 3), budget=30),
    "even_untied": Case((0, 1, 0, 1, 0), model="untied"),
    "small_micro_batches": Case((0, 0, 0, 0, 1), budget=25),
    "other_micro_batches": Case((1, 0, 0, 1, 1), budget=45, model="untied"),
    "a_rank_without_rows": Case((1, 1, 1, 1, 1), budget=40),
    "recomputed": Case((0, 1, 0, 1, 1), budget=40, recompute=True),
    "adapters": Case((0, 1, 0, 1, 0), budget=40, lora=LoraSpec(rank=3)),
    "adapters_recomputed": Case(
        (1, 1, 1, 1, 1),
        model="untied",
        recompute=True,
        lora=LoraSpec(rank=2, target_modules=("q_proj", "down_proj")),  # fewer rows than ranks
    ),
    "bfloat16": Case((0, 1, 0, 1, 0), budget=40, autocast="bfloat16"),
    "a_gradient_that_is_not_finite": Case((0, 1, 0, 1, 0), broken=True),
}
LAYOUTS = {
    "1": ParallelDims(),
    "2": ParallelDims(shard=2),
    "3": ParallelDims(shard=3),
    "2x1": ParallelDims(replicate=2),
    "2x2": ParallelDims(replicate=2, shard=2),
}
"""Each takes up a checkpoint of the one before."""
NO_TOOLS = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"


def save_models(folder: Path) -> None:
    for name, tied in (("tied", True), ("untied", False)):
        options = {"vocab_size": VOCABULARY, "tie_word_embeddings": tied}
        save_model(folder / name, seed=3, **TWO_LAYERS, **options)
    bad = make_model(seed=3, **TWO_LAYERS, vocab_size=VOCABULARY)
    with torch.no_grad():
        bad.model.embed_tokens.weight[-40:] = 0.0
        bad.model.norm.weight[0] = torch.nan
    bad.save_pretrained(folder / "bad")
    classifier = {"vocab_size": len(NAMES), "num_labels": 1, "pad_token_id": 0}
    save_model(folder / "judge", LlamaForSequenceClassification, **TWO_LAYERS, **classifier)
    save_tokenizer(folder / "judge", template=NO_TOOLS + TEMPLATE)


def rows_of_step(*, broken: bool = False) -> Experience:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 10, (GROUPS * SAMPLES,), generator=generator)
    tokens = int(lengths.sum())
    advantages = torch.randn(tokens, generator=generator)
    if broken:
        advantages[0] = torch.nan
    prompts = [
        torch.randint(VOCABULARY, (length,), generator=generator) for length in (3, 7, 1, 5, 2)
    ]
    return Experience(
        prompts=prompts,
        row_groups=torch.arange(GROUPS).repeat_interleave(SAMPLES),
        response_tokens=torch.randint(VOCABULARY, (tokens,), generator=generator),
        lengths=lengths,
        mask=torch.rand(tokens, generator=generator) < 0.8,
        rollout_logprobs=torch.zeros(tokens),
        advantages=advantages,
    )


def rows_of_rank(owners: Sequence[int], rank: int, size: int) -> Tensor:
    return torch.tensor(
        [row for row in range(GROUPS * SAMPLES) if owners[row // SAMPLES] % size == rank],
        dtype=torch.int64,
    )


def name_of(dims: ParallelDims) -> str:
    return next(name for name, layout in LAYOUTS.items() if layout == dims)


def make_engine(model: PreTrainedModel, case: Case, world: World) -> TrainEngine:
    training = TrainingSpec(
        autocast=case.autocast,
        micro_batch_tokens=case.budget,
        activation_checkpointing=case.recompute,
    )
    head = PolicyHead(LogprobSettings(chunk_tokens=8, entropy="value"))
    optimizer = OptimizerSpec(learning_rate=1e-3, gradient_clip=0.5)
    return TrainEngine(model, head, training, optimizer, 10, world)


def load(case: Case, folder: Path, world: World) -> PreTrainedModel:
    return load_model(folder / case.model, world=world, lora=case.lora, seed=3)


def objective() -> PolicyObjective:
    return PolicyObjective.of(
        AlgorithmSpec(type="grpo", prompts_per_step=GROUPS, samples_per_prompt=SAMPLES)
    )


def run_case(case: Case, folder: Path, world: World) -> dict[str, Tensor]:
    """Log-probabilities of the rank's rows, the first gradient, the weights after two updates."""
    model = load(case, folder, world)
    engine = make_engine(model, case, world)
    everything = rows_of_step(broken=case.broken)
    rows = everything.select(rows_of_rank(case.owners, world.rank, world.size))
    results = {"logprobs": engine.predict(rows)[0]}
    engine.update(rows, objective())
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    results |= {f"gradient/{n}": whole(gradient).clone() for n, gradient in trained.items()}
    stats = step_statistics([engine.update(rows, objective())])
    results |= {f"weight/{n}": t.clone() for n, t in named_full_tensors(model)}
    results |= {f"stats/{n}": torch.tensor(v, dtype=torch.float64) for n, v in stats.items()}
    return results


def write_checkpoint(folder: Path, engine: TrainEngine, world: World) -> None:
    if world.dims.in_first_copy(world.rank) != world.rank:
        return
    for kind, tensors in (
        ("model", trained_tensors(engine.model)),
        ("optimizer", engine.state_tensors()),
    ):
        path = f"actorRollout/rank-{world.rank:05d}/{kind}"
        write_shard(folder, path, tensors, role="actorRollout", rank=world.rank)


def entries_of(folder: Path, kind: str) -> list[FileEntry]:
    entries = []
    for path in sorted(folder.glob(f"actorRollout/*/{kind}")):
        size, sha256 = sha256_of(path)
        name = path.relative_to(folder).as_posix()
        rank = int(path.parent.name.removeprefix("rank-"))
        entries.append(
            FileEntry(path=name, size_bytes=size, sha256=sha256, role="actorRollout", rank=rank)
        )
    return entries


def restored_engine(
    checkpoint: Path, folder: Path, world: World, case: Case = CASES["even"]
) -> TrainEngine:
    model = load(case, folder, world)
    engine = make_engine(model, case, world)
    weights = {name: box_of(weight) for name, weight in trained_tensors(model).items()}
    writer = world.dims.in_first_copy(world.rank)
    parts = {
        kind: read_parts(checkpoint, entries_of(checkpoint, kind), wanted, rank=writer)
        for kind, wanted in (("model", weights), ("optimizer", optimizer_boxes(model)))
    }
    load_named_tensors(model, parts["model"])
    engine.load_state(parts["optimizer"])
    return engine


def state_of(engine: TrainEngine) -> dict[str, Tensor]:
    """All of a checkpoint's tensors, put together."""
    state = {name: tensor.clone() for name, tensor in named_full_tensors(engine.model)}
    return state | {name: whole(tensor).clone() for name, tensor in engine.state_tensors().items()}


def run_checkpoint(folder: Path, world: World, name: str = "even") -> dict[str, Tensor]:
    """Checkpoint after an update, go on; the restored engine goes on too, to compare."""
    case = CASES[name]
    engine = make_engine(load(case, folder, world), case, world)
    rows = rows_of_step().select(rows_of_rank(case.owners, world.rank, world.size))
    engine.update(rows, objective())
    checkpoint = folder / f"checkpoint-of-{name_of(world.dims)}-{name}"
    checkpoint.mkdir(exist_ok=True)
    write_checkpoint(checkpoint, engine, world)
    at_checkpoint = state_of(engine)
    sum_over_ranks(world, [0.0])  # all have written
    restored = restored_engine(checkpoint, folder, world, case)
    engine.update(rows, objective())
    restored.update(rows, objective())
    return {
        **{f"checkpoint/{name}": tensor for name, tensor in at_checkpoint.items()},
        **{f"went_on/{name}": tensor for name, tensor in state_of(engine).items()},
        **{f"restored/{name}": tensor for name, tensor in state_of(restored).items()},
    }


def run_foreign_checkpoint(folder: Path, world: World, name: str = "even") -> dict[str, Tensor]:
    """Restore what the layout before has saved."""
    names = list(LAYOUTS)
    before = names[names.index(name_of(world.dims)) - 1]
    checkpoint = folder / f"checkpoint-of-{before}-{name}"
    return state_of(restored_engine(checkpoint, folder, world, CASES[name]))


def run_export(folder: Path, world: World) -> dict[str, Tensor]:
    """Export right after a prediction, which needs all root weights whole for a while."""
    case = CASES["adapters_recomputed"]
    model = load(case, folder, world)
    for name, parameter in model.named_parameters():
        if name.endswith(B):
            fill(parameter, torch.linspace(-1.0, 1.0, parameter.numel()).view(parameter.shape))
    engine = make_engine(model, case, world)
    engine.predict(rows_of_step())
    adapters = adapters_of(model)
    options = {"dtype": torch.bfloat16, "max_file_bytes": 20_000, "adapters": adapters}
    target = folder / f"export-of-{name_of(world.dims)}" if world.rank == 0 else None
    export_model(target, hf_named_tensors(model), model_folder=folder / "untied", **options)
    return {}


def run_value_model(folder: Path, world: World) -> dict[str, Tensor]:
    model = load_value_model(folder / "tied", world=world)
    return {name: tensor.clone() for name, tensor in named_full_tensors(model)}


def run_refusal(folder: Path, world: World) -> dict[str, Tensor]:
    """Score what the template refuses on the last rank, then what it takes on all of them."""
    model = load_reward_model(folder / "judge", torch.float32, world=world)
    taken = [Answer([{"role": "user", "content": "1+1"}], str(world.rank))] * (world.rank + 1)
    refused = [Answer([{"role": "tool", "content": "5"}], "6")]
    with ChatTokenizer(folder / "judge") as chat:
        engine = ScoreEngine(model, chat, TrainingSpec(), world)
        try:
            engine.scores(refused if world.rank == world.size - 1 else taken)
        except PPOJobError as problem:
            told = str(problem)
        return {
            "told": torch.tensor(list(told.encode()), dtype=torch.uint8),
            "scores": torch.tensor(engine.scores(taken)),
        }


def run_bad_values(folder: Path, world: World) -> dict[str, Tensor]:
    """Load a model that has a NaN in the rows of rank 0, and zeros in those of the last."""
    try:
        load_model(folder / "bad", world=world)
    except ConfigError as problem:
        return {"told": torch.tensor(list(str(problem).encode()), dtype=torch.uint8)}
    return {}


def run_collectives(_folder: Path, world: World) -> dict[str, Tensor]:
    return {
        "sum": torch.tensor(sum_over_ranks(world, [0.1 * world.rank, 1e16 * (-1) ** world.rank])),
        "largest": torch.tensor(largest_over_ranks(world, world.rank * 3)),
    }


SCENARIOS: dict[str, Callable[[Path, World], dict[str, Tensor]]] = {
    "checkpoint-even": run_checkpoint,
    "checkpoint-adapters": partial(run_checkpoint, name="adapters"),
    "foreign_checkpoint-even": run_foreign_checkpoint,
    "foreign_checkpoint-adapters": partial(run_foreign_checkpoint, name="adapters"),
    "export": run_export,
    "value_model": run_value_model,
    "refusal": run_refusal,
    "bad_values": run_bad_values,
    "collectives": run_collectives,
}


def run_rank(rank: int, layout: str, port: int, root: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    results = root / layout
    meeting = MeetingPoint("127.0.1.1", port, "uid/actorRollout/0")
    address = f"127.0.1.{rank + 1}"
    dims, cpu = LAYOUTS[layout], torch.device("cpu")
    with open_world(rank, dims.size, cpu, dims=dims, address=address, meeting=meeting) as world:
        for name, scenario in SCENARIOS.items():
            write_tensors(results / f"{name}-{rank}.safetensors", scenario(root, world))
        for name, case in CASES.items():
            write_tensors(results / f"{name}-{rank}.safetensors", run_case(case, root, world))
        again = run_case(CASES["small_micro_batches"], root, world)
        write_tensors(results / f"again-{rank}.safetensors", again)


def run_world(layout: str, root: Path) -> bool:
    """Run all ranks of a layout, each a fork; answers whether all went well."""
    (root / layout).mkdir()
    with socket.create_server(("127.0.1.1", 0)) as server:
        port = server.getsockname()[1]
    # The last rank first: whoever comes early waits for rank 0.
    ranks = [
        multiprocessing.get_context("fork").Process(
            target=run_rank, args=(rank, layout, port, root), daemon=True
        )
        for rank in reversed(range(LAYOUTS[layout].size))
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return not any(rank.exitcode for rank in ranks)


if __name__ == "__main__":
    folder, layouts = Path(sys.argv[1]), sys.argv[2:]
    sys.exit(0 if all(run_world(layout, folder) for layout in layouts) else 1)
