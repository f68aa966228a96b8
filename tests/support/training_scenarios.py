"""What ranks do together beside updates: checkpoints, exports, memory, heads, refusals."""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from training_cases import (
    CASES,
    DIVERGENCES,
    VALUE_GOAL,
    VALUE_MODELS,
    Case,
    load,
    make_engine,
    name_of,
    objective,
    of_all_stages,
    rows_of_rank,
    rows_of_step,
    value_engine,
    valued_rows,
)

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.tensors import Shard, read_parts
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.durable import sha256_of
from ppojob_trainer.engine.full_kl import Divergence, full_kl
from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs
from ppojob_trainer.engine.head import LastStates
from ppojob_trainer.engine.optimizer import OF_ADAMW
from ppojob_trainer.engine.score_engine import Answer, ScoreEngine
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.errors import ConfigError, PPOJobError
from ppojob_trainer.models.adapter_names import B, is_adapter
from ppojob_trainer.models.kinds import CRITIC, REWARD
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import (
    broadcast_by_holders,
    every_adapter,
    every_tensor,
    load_named_tensors,
    named_full_tensors,
    trained_tensors,
)
from ppojob_trainer.parallel.boxes import box_of, full_tensor, local_part
from ppojob_trainer.parallel.collectives import max_over_ranks, sum_over_ranks
from ppojob_trainer.parallel.fsdp import as_forward, fill
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.workers.learner import resident_weights


def write_checkpoint(folder: Path, engine: TrainEngine, world: World) -> None:
    if world.dims.in_first_replica(world.rank) != world.rank:
        return
    for kind, tensors in (
        ("model", trained_tensors(engine.model)),
        ("optimizer", engine.state_tensors()),
    ):
        path = f"actorRollout/rank-{world.rank:05d}/{kind}"
        Shard.of(path, tensors, role="actorRollout", rank=world.rank).write(folder)


def checkpoint_of(folder: Path, layout: str, name: str) -> Path:
    """Where a layout leaves its checkpoint of a case."""
    return folder / f"checkpoint-of-{layout}-{name}"


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


def restored_engine(checkpoint: Path, folder: Path, world: World, case: Case) -> TrainEngine:
    model = load(case, folder, world)
    engine = make_engine(model, case, world)
    weights = {name: box_of(weight) for name, weight in trained_tensors(model).items()}
    writer = world.dims.in_first_replica(world.rank)
    parts = {
        kind: read_parts(checkpoint, entries_of(checkpoint, kind), wanted, rank=writer)
        for kind, wanted in (("model", weights), ("optimizer", engine.state_boxes()))
    }
    load_named_tensors(model, parts["model"])
    engine.load_state(parts["optimizer"])
    return engine


def state_of(engine: TrainEngine) -> dict[str, Tensor]:
    """All of a checkpoint's tensors, put together."""
    state = {name: tensor.clone() for name, tensor in named_full_tensors(engine.model)}
    own = {name: full_tensor(tensor).clone() for name, tensor in engine.state_tensors().items()}
    return state | of_all_stages(engine._world, own)


def run_checkpoint(folder: Path, world: World, name: str = "even") -> dict[str, Tensor]:
    """Checkpoint after an update, go on; the restored engine goes on too, to compare."""
    case = CASES[name]
    engine = make_engine(load(case, folder, world), case, world)
    rows = rows_of_step().select(rows_of_rank(case.owners, world.rank, world.dims))
    goal = objective(partition=case.partition)
    engine.update(rows, goal)
    checkpoint = checkpoint_of(folder, name_of(world.dims), name)
    checkpoint.mkdir(exist_ok=True)
    write_checkpoint(checkpoint, engine, world)
    at_checkpoint = state_of(engine)
    sum_over_ranks(world, [0.0])  # all have written
    restored = restored_engine(checkpoint, folder, world, case)
    engine.update(rows, goal)
    restored.update(rows, goal)
    held = [*engine.model.parameters(), *engine.state_tensors().values()]
    return {
        "held/bytes": torch.tensor([sum(local_part(tensor).nbytes for tensor in held)]),
        **{f"checkpoint/{name}": tensor for name, tensor in at_checkpoint.items()},
        **{f"went_on/{name}": tensor for name, tensor in state_of(engine).items()},
        **{f"restored/{name}": tensor for name, tensor in state_of(restored).items()},
    }


def run_offloaded(folder: Path, world: World, name: str) -> dict[str, Tensor]:
    """Two updates with all that can leave the device, and without; read where the weights are."""
    case, results = CASES[name], {}
    rows = rows_of_step().select(rows_of_rank(case.owners, world.rank, world.dims))
    for kind, offload in ("plain", ()), ("offloaded", get_args(Offloaded)):
        model = load(case, folder, world)
        engine = make_engine(model, case, world, offload)
        resident = resident_weights(model, offload)
        torch.manual_seed(world.dims.data_coordinate(world.rank))
        for _ in range(2):
            with resident.on_device():
                logprobs = engine.predict(rows)[0]
                engine.update(rows, objective())
        state = engine.state_tensors()
        weights = named_full_tensors(model, resident.host.on_device)
        found = {f"weight/{n}": t.clone() for n, t in weights}
        found |= {f"moment/{n}": full_tensor(engine.moments.on_device(t)) for n, t in state.items()}
        moments = [t for n, t in state.items() if n.endswith(OF_ADAMW[:2])]
        held = [w for n, w in model.named_parameters() if not is_adapter(n)] + moments
        sizes = [local_part(t).untyped_storage().nbytes() for t in held]
        results[f"{kind}/held"] = torch.tensor(sum(sizes))
        results |= {f"{kind}/bits/{n}": t for n, t in {**found, "logprobs": logprobs}.items()}
    return results


def run_kept_whole(folder: Path, world: World, name: str) -> dict[str, Tensor]:
    """Two updates that give layers back behind forward passes, or not; `whole` counts weights."""
    case, results = CASES[name], {}
    rows = rows_of_step().select(rows_of_rank(case.owners, world.rank, world.dims))
    for kind in ("given_back", "kept"):
        model = load(case, folder, world)
        engine = make_engine(model, case, world, reshard=kind == "given_back")
        layers = model.base_model.layers
        whole_layers: list[int] = []

        def count(*_: object, layers=layers, found=whole_layers) -> None:
            found.append(sum(local_part(w) is w for w in layers.parameters()))

        model.base_model.norm.register_forward_hook(count)
        torch.manual_seed(world.dims.data_coordinate(world.rank))
        found = {}
        for step in range(2):
            found[f"logprobs/{step}"] = engine.predict(rows)[0]
            count()
            engine.update(rows, objective())
            count()
        found |= {f"weight/{n}": t.clone() for n, t in named_full_tensors(model)}
        results |= {f"{kind}/bits/{n}": t for n, t in found.items()}
        results[f"{kind}/whole"] = torch.tensor(whole_layers)
    return results


def run_foreign_checkpoints(
    folder: Path, world: World, written: Sequence[tuple[str, str]]
) -> dict[str, Tensor]:
    """Restore what other layouts have saved: those of some cases and layouts."""
    found = {}
    for name, writer in written:
        checkpoint = checkpoint_of(folder, writer, name)
        state = state_of(restored_engine(checkpoint, folder, world, CASES[name]))
        found |= {f"{checkpoint.name}/{key}": tensor for key, tensor in state.items()}
    return found


def run_export(folder: Path, world: World) -> dict[str, Tensor]:
    """Export right after a prediction, which needs all root weights whole for a while."""
    case = CASES["adapters_recomputed"]
    model = load(case, folder, world)
    for name, parameter in model.named_parameters():
        if name.endswith(B):
            fill(parameter, torch.linspace(-1.0, 1.0, parameter.numel()).view(parameter.shape))
    engine = make_engine(model, case, world)
    engine.predict(rows_of_step())
    adapters = every_adapter(model)
    options = {"dtype": torch.bfloat16, "max_file_bytes": 20_000, "adapters": adapters}
    target = folder / f"export-of-{name_of(world.dims)}" if world.rank == 0 else None
    options["wrap_join"] = partial(broadcast_by_holders, model)
    export_model(target, every_tensor(model), model_folder=folder / case.model, **options)
    # Its files have other names for the weights, those of a tower that learns among them.
    seeing = load(CASES["images_behind_layers"], folder, world)
    if target is not None:
        target = target.with_name(f"{target.name}-seeing")
    kept = {"dtype": torch.float32, "wrap_join": partial(broadcast_by_holders, seeing)}
    export_model(target, every_tensor(seeing), model_folder=folder / "seeing_3", **kept)
    return {}


def run_value_model(
    folder: Path, world: World, model_name: str = "tied", lora: LoraSpec | None = None
) -> dict[str, Tensor]:
    """A critic as it begins, and what it is behind two updates."""
    model = load_model(folder / model_name, world=world, lora=lora, seed=3, kind=CRITIC)
    beginning = {f"model/{name}": tensor.clone() for name, tensor in named_full_tensors(model)}
    rows = valued_rows()
    mine = rows.select(rows_of_rank(CASES["even"].owners, world.rank, world.dims))
    engine = value_engine(model, world)
    norms = [engine.update(mine, VALUE_GOAL).values["critic/grad_norm"] for _ in range(2)]
    own = {
        f"trained/{name}": full_tensor(tensor) for name, tensor in trained_tensors(model).items()
    }
    trained = of_all_stages(world, own)
    values = engine.predict(rows)[0]
    return {**beginning, **trained, "norms": torch.tensor(norms), "values": values}


def run_memory(folder: Path, world: World) -> dict[str, Tensor]:
    """What an update of one micro-batch keeps for its backward pass, weights apart."""
    engine = make_engine(load(CASES["even"], folder, world), CASES["even"], world)
    own = {local_part(w).untyped_storage().data_ptr() for w in engine.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    rows = rows_of_step(long=1200)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        engine.update(rows, objective())
    # Weights that were put together for the passes have been given back, and hold nothing now.
    return {"kept": torch.tensor(sum(storage.nbytes() for storage in kept.values()))}


def run_memory_of_passes(folder: Path, world: World) -> dict[str, Tensor]:
    """The most that an update keeps at once, of one micro-batch and of several as large."""
    rows, found = rows_of_step(long=1200), {}
    for times in (1, 6):
        case = replace(CASES["even_untied"], budget=1200)
        engine = make_engine(load(case, folder, world), case, world)
        kept = Kept()
        with kept:
            engine.update(rows.select(torch.zeros(times, dtype=torch.int64)), objective())
        found[f"of_{times}"] = torch.tensor(kept.most)
    return found


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Bytes that backward passes wait for, by storages of which somebody holds a part."""

    def __init__(self) -> None:
        self.most = 0
        self._sizes: dict[int, int] = {}  # by address of a storage, while it is kept
        self._holders: Counter[int] = Counter()
        super().__init__(self._keep, lambda held: held.tensor)

    def _keep(self, tensor: Tensor) -> "Held":
        storage, held = tensor.untyped_storage(), Held(tensor)
        address = storage.data_ptr()
        self._sizes[address] = storage.nbytes()
        self._holders[address] += 1
        weakref.finalize(held, self._let_go, address)
        self.most = max(self.most, sum(self._sizes.values()))
        return held

    def _let_go(self, address: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._sizes[address]


@dataclass(eq=False)
class Held:
    tensor: Tensor


def run_exchange(_folder: Path, world: World) -> dict[str, Tensor]:
    """Tokens and heads there and back, with gradients; three ranks have two key heads."""
    ranks = SequenceRanks(world.rank, world.size, world.group)
    generator = torch.Generator().manual_seed(5)
    whole = [
        torch.randn(6 * world.size, heads, 4, generator=generator, requires_grad=True)
        for heads in (2 * world.size, 2, 2)
    ]
    query, key, value = ranks.to_heads(*(x.chunk(world.size)[world.rank] for x in whole))
    mixed = query.unflatten(1, (key.shape[1], -1)) * key[:, :, None] + value[:, :, None].square()
    back = ranks.to_tokens(mixed.flatten(1, 2))
    weight = torch.randn(6 * world.size, 2 * world.size, 4, generator=generator)
    (back * weight.chunk(world.size)[world.rank]).sum().backward()
    grads = {}
    for name, x in zip(("query", "key", "value"), whole, strict=True):
        assert x.grad is not None
        grads[name] = x.grad.clone()
    query, key, value = (x.detach().requires_grad_() for x in whole)
    each = world.size  # query heads of a key head
    key_of, value_of = (x.repeat_interleave(each, dim=1) for x in (key, value))
    expected = query * key_of + value_of.square()
    (expected * weight).sum().backward()
    own = slice(6 * world.rank, 6 * world.rank + 6)
    return {
        "back": back.detach(),
        "expected/back": expected.detach()[own],
        **{name: grad[own] for name, grad in grads.items()},
        "expected/query": query.grad[own],
        "expected/key": key.grad[own],
        "expected/value": value.grad[own],
    }


def taken(rank: int) -> list[Answer]:
    return [Answer([{"role": "user", "content": "1+1"}], str(rank))] * (rank + 1)


def scores_alone(folder: Path, ranks: int) -> list[list[float]]:
    """What one rank says of what each of several has to score."""
    model = load_model(folder / "judge", torch.float32, kind=REWARD)
    with ChatTokenizer(folder / "judge") as chat:
        engine = ScoreEngine(model, chat, TrainingSpec())
        return [engine.scores(taken(rank)) for rank in range(ranks)]


def run_refusal(folder: Path, world: World) -> dict[str, Tensor]:
    """Score what the template refuses on the last rank, then what it takes on all of them."""
    model = load_model(folder / "judge", torch.float32, world=world, kind=REWARD)
    answers = taken(world.rank)
    refused = [Answer([{"role": "tool", "content": "5"}], "6")]
    with ChatTokenizer(folder / "judge") as chat:
        engine = ScoreEngine(model, chat, TrainingSpec(), world)
        try:
            engine.scores(refused if world.rank == world.size - 1 else answers)
        except PPOJobError as problem:
            told = str(problem)
        return {
            "told": torch.tensor(list(told.encode()), dtype=torch.uint8),
            "scores": torch.tensor(engine.scores(answers)),
        }


def run_heads(folder: Path, world: World) -> dict[str, Tensor]:
    """An output layer and its gradients, whole and by ranks; `same`: a model's KL to itself."""
    generator = torch.Generator().manual_seed(5)
    states, ref_states = torch.randn(2, 7, 32, generator=generator)
    targets = torch.tensor([0, 48, 49, 96, 3, 60, 50])
    settings = LogprobSettings(0.7, 2, entropy="gradient", squares=True, certainty=True)
    model, reference = (load_model(folder / name, world=world) for name in ("untied", "biased"))
    layer, ref_layer = (full_tensor(one.lm_head.weight.detach()) for one in (model, reference))
    ref_weight = as_forward(reference, lambda: reference.lm_head.weight.detach())

    def told(hidden: Tensor, weight: Tensor, ref_weight: Tensor) -> dict[str, Tensor]:
        values = fused_logprobs(hidden, weight, targets, settings)
        reference = LastStates(ref_states, ref_weight)
        own = dict(zip(("logprobs", "entropy", "squares", "certainty"), values, strict=True))
        return own | {
            name: full_kl(hidden, weight, reference, settings, Divergence(name, 0.3))
            for name in DIVERGENCES
        }

    results = {}
    for name in ("whole", "cut"):
        hidden, parameter = states.clone().requires_grad_(), model.lm_head.weight
        if name == "whole":
            parameter = layer.requires_grad_()
            values = told(hidden, layer, ref_layer)
        else:
            values = as_forward(model, lambda: told(hidden, model.lm_head.weight, ref_weight))  # noqa: B023
        shares = torch.linspace(-1.0, 1.0, len(targets))
        loss = values["logprobs"] + 0.3 * values["entropy"]
        loss = loss + sum(0.2 * values[name] for name in DIVERGENCES)
        (loss * shares).sum().backward()
        copies = 1 if name == "whole" else world.size // world.dims.tensor
        values |= {"hidden": hidden.grad, "weight": full_tensor(parameter.grad) / copies}
        results |= {f"{name}/{key}": value.detach().clone() for key, value in values.items()}
    same = LastStates(ref_states, ref_weight)
    return results | {"same/kl": full_kl(ref_states, ref_weight, same, settings)}


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
        "largest": torch.tensor(max_over_ranks(world, world.rank * 3)),
    }


SCENARIOS: dict[str, Callable[[Path, World], dict[str, Tensor]]] = {
    "checkpoint-even": run_checkpoint,
    "checkpoint-adapters": partial(run_checkpoint, name="adapters"),
    "checkpoint-muon": partial(run_checkpoint, name="muon"),
    "checkpoint-partition": partial(run_checkpoint, name="partition"),
    "offloaded": partial(run_offloaded, name="dropout_recomputed"),
    "offloaded_adapters": partial(run_offloaded, name="adapters_recomputed"),
    "offloaded_nf4": partial(run_offloaded, name="adapters_beside_nf4"),
    "kept_whole": partial(run_kept_whole, name="dropout_recomputed"),
    "kept_whole_adapters": partial(run_kept_whole, name="adapters"),
    "export": run_export,
    **{name: partial(run_value_model, **own) for name, own in VALUE_MODELS.items()},
    "memory": run_memory,
    "memory_of_passes": run_memory_of_passes,
    "exchange": run_exchange,
    "heads": run_heads,
    "refusal": run_refusal,
    "bad_values": run_bad_values,
    "collectives": run_collectives,
}
