"""The ranks of the worlds in `tests/unit/parallel/test_ranks_train.py`; also their cases and rows.

Run: `python training_ranks.py FOLDER LAYOUT...`. The folder holds what `save_models` writes and a
checkpoint of one rank; results go into `<LAYOUT>/<case>-<rank>.safetensors`. When all worlds have
been, each comes again and takes up the checkpoints of all others. Ranks are forked: PyTorch is
imported once for all of them.
"""

import faulthandler
import multiprocessing
import socket
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from traceback import format_exc
from typing import get_args

import torch
from family_models import FAMILY_MODELS
from tiny_models import (
    MIXTURE,
    NAMES,
    TEMPLATE,
    TWO_LAYERS,
    make_model,
    save_model,
    save_tokenizer,
)
from torch import Tensor
from transformers import (
    Gemma2ForCausalLM,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, KlSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_api.v1alpha1.training import LoraSpec, OptimizerSpec, TrainingSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.files import FileEntry, sha256_of
from ppojob_trainer.checkpoint.tensors import read_parts, write_shard, write_tensors
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.engine.distillation_objective import DistillationObjective
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.full_kl import REVERSE_KL, Divergence, HeadWithKl, full_kl
from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs
from ppojob_trainer.engine.head import LastStates, PolicyHead, ValueHead
from ppojob_trainer.engine.objective import Aggregation
from ppojob_trainer.engine.optimizer import OF_ADAMW
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.score_engine import Answer, ScoreEngine
from ppojob_trainer.engine.train_engine import HeadOf, TrainEngine
from ppojob_trainer.engine.value_objective import ValueObjective
from ppojob_trainer.errors import ConfigError, PPOJobError
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.models.families import FAMILIES as TABLE
from ppojob_trainer.models.load import load_model, load_reward_model, load_value_model
from ppojob_trainer.models.lora import B, is_adapter
from ppojob_trainer.models.state_dict import (
    every_adapter,
    every_tensor,
    load_named_tensors,
    named_full_tensors,
    told_by_holders,
    trained_tensors,
)
from ppojob_trainer.parallel.boxes import box_of, local_part, whole
from ppojob_trainer.parallel.collectives import (
    largest_over_ranks,
    shared_within,
    sum_over_ranks,
)
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.fsdp import as_forward, fill
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.parallel.world import MeetingPoint, World, open_world
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.workers.learner import resident_weights

SIZES = {**TWO_LAYERS, "num_hidden_layers": 3}  # two stages of a pipeline have not the same
VOCABULARY = 97  # not a multiple of any number of ranks
GROUPS, SAMPLES = 5, 3
WHOLE_BUDGET = 10_000
HEAD = PolicyHead(LogprobSettings(chunk_tokens=8, entropy="value"))


ADAMW = OptimizerSpec(learning_rate=1e-3, gradient_clip=0.5)
MUON = OptimizerSpec(type="muon", learning_rate=1e-3, weight_decay=0.1, gradient_clip=0.5)
SGD = OptimizerSpec(type="sgd", learning_rate=1e-1, momentum=0.9, gradient_clip=0.5)


@dataclass(frozen=True)
class Case:
    """One way of computing the same two updates."""

    owners: tuple[int, ...]  # the coordinate of each group, of as many as there are
    budget: int = WHOLE_BUDGET  # tokens of a micro-batch
    model: str = "tied"
    autocast: str = "none"
    recompute: bool = False
    broken: bool = False
    lora: LoraSpec | None = None
    full_kl: bool = False
    teacher: Divergence | None = None  # the loss, instead of that of the policy
    optimizer: OptimizerSpec = ADAMW
    long: int | None = None  # tokens of the first response; None for as few as the others have

    @property
    def alone(self) -> "Case":
        """The same on one rank, as plainly as can be."""
        plain = {"budget": WHOLE_BUDGET, "recompute": False}
        return replace(self, owners=(0,) * GROUPS, **plain)


CASES = {
    "even": Case((0, 1, 0, 1, 0)),
    "spread": Case((0, 3, 1, 2, 3), budget=30),
    "even_untied": Case((0, 1, 0, 1, 0), model="untied"),
    "small_micro_batches": Case((0, 0, 0, 0, 1), budget=25),
    "other_micro_batches": Case((1, 0, 0, 1, 1), budget=45, model="untied"),
    "a_rank_without_rows": Case((1, 1, 1, 1, 1), budget=40),
    "recomputed": Case((0, 1, 0, 1, 1), budget=40, recompute=True),
    "biases": Case((0, 1, 0, 1, 0), model="biased"),
    "qwen2": Case((0, 1, 0, 1, 0), budget=40, model="qwen2"),
    "qwen3": Case((0, 1, 0, 1, 0), budget=40, model="qwen3"),
    "qwen3_recomputed": Case((0, 1, 1, 1, 0), model="qwen3_tied", recompute=True),
    "experts": Case((0, 0, 0, 0, 1), budget=30, model="qwen3_moe"),
    "experts_recomputed": Case((1, 1, 1, 1, 1), budget=40, model="qwen3_moe", recompute=True),
    "adapters": Case((0, 1, 0, 1, 0), budget=40, lora=LoraSpec(rank=3)),
    "adapters_of_biased_layers": Case((0, 1, 0, 1, 0), model="biased", lora=LoraSpec(rank=2)),
    "adapters_recomputed": Case(
        (1, 1, 1, 1, 1),
        model="untied",
        recompute=True,
        lora=LoraSpec(rank=2, target_modules=("q_proj", "down_proj")),  # fewer rows than ranks
    ),
    "muon": Case((0, 1, 0, 1, 0), budget=40, model="biased", optimizer=MUON),
    "muon_of_adapters": Case((0, 1, 0, 1, 0), optimizer=MUON, lora=LoraSpec(rank=3)),
    "sgd": Case((0, 1, 0, 1, 0), budget=40, optimizer=SGD),
    "long_rows": Case((0, 1, 0, 1, 1), long=1200),
    "full_kl": Case((0, 1, 0, 1, 0), budget=40, model="untied", full_kl=True),
    "teacher": Case((0, 1, 0, 1, 0), budget=40, teacher=Divergence("jsd", 0.3)),
    "dropout": Case((0, 1, 0, 1, 0), budget=40, model="dropout"),
    "dropout_recomputed": Case((0, 1, 0, 1, 0), budget=40, model="dropout", recompute=True),
    "bfloat16": Case((0, 1, 0, 1, 0), budget=40, autocast="bfloat16"),
    "a_gradient_that_is_not_finite": Case((0, 1, 0, 1, 0), broken=True),
}
FAMILIES = {
    family: Case((0, 1, 0, 1, 0), budget=40, model=family)
    for family in FAMILY_MODELS
    if family not in ("llama", "qwen2", "qwen3", "qwen3_moe")  # which are above
}
OF_FAMILIES = ("s2", "t2", "p3")
"""Where each of them is cut by shards and heads, by matrices, and by layers."""
CASES |= FAMILIES
LAYOUTS = {
    "1": ParallelDims(),
    "2": ParallelDims(shard=2),
    "3": ParallelDims(shard=3),
    "2x1": ParallelDims(replicate=2),
    "2x2": ParallelDims(replicate=2, shard=2),
    "s2": ParallelDims(sequence=2),
    "s4": ParallelDims(sequence=4),
    "2x1s2": ParallelDims(replicate=2, sequence=2),
    "t2": ParallelDims(tensor=2),
    "2x1t2": ParallelDims(replicate=2, tensor=2),
    "s2t2": ParallelDims(sequence=2, tensor=2),
    "p3": ParallelDims(pipeline=3),
    "2p2": ParallelDims(pipeline=2, shard=2),
}
OF_TWO_KINDS = ("2x1s2", "2x1t2", "s2t2", "2p2")
"""What each kind of ranks does by itself is seen in other layouts; here, that two go together."""
TOGETHER = (
    *("even", "small_micro_batches", "a_rank_without_rows", "long_rows", "full_kl"),
    *("muon", "experts", "adapters", "adapters_recomputed", "dropout", "dropout_recomputed"),
    *("bfloat16", "a_gradient_that_is_not_finite"),
)
MODELS: Mapping[str, tuple[type[PreTrainedModel], dict[str, object]]] = {
    **{family: FAMILY_MODELS[family] for family in FAMILIES},
    "gemma2": (Gemma2ForCausalLM, {**FAMILY_MODELS["gemma2"][1], "tie_word_embeddings": True}),
    "tied": (LlamaForCausalLM, {"tie_word_embeddings": True, "pad_token_id": 60}),
    "untied": (LlamaForCausalLM, {}),
    "biased": (LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, {"head_dim": 8, "attention_bias": True}),
    "qwen3_tied": (Qwen3ForCausalLM, {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3_moe": (Qwen3MoeForCausalLM, MIXTURE),
    "dropout": (LlamaForCausalLM, {"attention_dropout": 0.3}),
}
DIVERGENCES = ("reverse_kl", "forward_kl", "jsd")
CRITIC_LORA = LoraSpec(rank=3)
VALUE_GOAL = ValueObjective(value_clip=0.5, aggregation=Aggregation("token_mean"))
NO_TOOLS = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"


def cases_of(layout: str) -> dict[str, Case]:
    """The cases that are run with a layout, by name."""
    names = TOGETHER if layout in OF_TWO_KINDS else tuple(CASES)
    return {name: CASES[name] for name in names if name not in FAMILIES or _holds(layout, name)}


def _holds(layout: str, family: str) -> bool:
    return layout in OF_FAMILIES and not (LAYOUTS[layout].tensor > 1 and TABLE[family].uncut)


def save_models(folder: Path) -> None:
    for name, (model_class, options) in MODELS.items():
        untied = {"tie_word_embeddings": False}
        sizes = {**SIZES, "vocab_size": VOCABULARY, "pad_token_id": None, **untied, **options}
        model = make_model(model_class, seed=3, **sizes)
        with torch.no_grad():  # nothing is 0 or 1 throughout
            for weight in model.parameters():
                if weight.ndim == 1:
                    weight.add_(0.3 * torch.randn(weight.shape))
        model.save_pretrained(folder / name)
    bad = make_model(seed=3, **SIZES, vocab_size=VOCABULARY)
    with torch.no_grad():
        bad.model.embed_tokens.weight[-40:] = 0.0
        bad.model.norm.weight[0] = torch.nan
    bad.save_pretrained(folder / "bad")
    classifier = {"vocab_size": len(NAMES), "num_labels": 1, "pad_token_id": 0}
    save_model(folder / "judge", LlamaForSequenceClassification, **SIZES, **classifier)
    save_tokenizer(folder / "judge", template=NO_TOOLS + TEMPLATE)


def rows_of_step(*, broken: bool = False, long: int | None = None) -> Experience:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 10, (GROUPS * SAMPLES,), generator=generator)
    if long is not None:
        lengths[0] = long
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


def rows_of_rank(owners: Sequence[int], rank: int, dims: ParallelDims) -> Tensor:
    """Rows of the rank's data-parallel coordinate, those owners counted around."""
    mine, size = dims.data_coordinate(rank), dims.data_size
    return torch.tensor(
        [row for row in range(GROUPS * SAMPLES) if owners[row // SAMPLES] % size == mine],
        dtype=torch.int64,
    )


def name_of(dims: ParallelDims) -> str:
    return next(name for name, layout in LAYOUTS.items() if layout == dims)


def make_engine(
    model: PreTrainedModel, case: Case, world: World, offload: Sequence[Offloaded] = ()
) -> TrainEngine:
    training = TrainingSpec(
        autocast=case.autocast,
        micro_batch_tokens=case.budget,
        activation_checkpointing=case.recompute,
    )
    return TrainEngine(model, HEAD, training, case.optimizer, 10, world, offload)


def load(case: Case, folder: Path, world: World) -> PreTrainedModel:
    return load_model(folder / case.model, world=world, lora=case.lora, seed=3)


def objective(*, full_kl: bool = False) -> PolicyObjective:
    kl = KlSpec(in_="loss", estimator="full", coefficient=0.3) if full_kl else KlSpec()
    return PolicyObjective.of(
        AlgorithmSpec(type="grpo", prompts_per_step=GROUPS, samples_per_prompt=SAMPLES, kl=kl)
    )


def head_with_kl(
    engine: TrainEngine, folder: Path, world: World, divergence: Divergence = REVERSE_KL
) -> HeadOf:
    """The KL, or another divergence, to another model."""
    name = "untied" if divergence != REVERSE_KL else "tied"
    reference = ForwardEngine(load_model(folder / name, world=world), HEAD, engine._training, world)
    return lambda rows: HeadWithKl(HEAD, reference.last_states(rows), divergence)


def run_case(case: Case, folder: Path, world: World) -> dict[str, Tensor]:
    """Log-probabilities of the rank's rows, the first gradient, the weights after two updates."""
    model = load(case, folder, world)
    engine = make_engine(model, case, world)
    everything = rows_of_step(broken=case.broken, long=case.long)
    rows = everything.select(rows_of_rank(case.owners, world.rank, world.dims))
    results = {"logprobs": engine.predict(rows)[0]}
    head_of = head_with_kl(engine, folder, world) if case.full_kl else None
    goal: PolicyObjective | DistillationObjective = objective(full_kl=case.full_kl)
    if case.teacher is not None:
        head_of = head_with_kl(engine, folder, world, case.teacher)
        goal = DistillationObjective(Aggregation("token_mean"))
    torch.manual_seed(world.dims.data_coordinate(world.rank))
    engine.update(rows, goal, head_of)
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    gradients = {f"gradient/{n}": whole(gradient).clone() for n, gradient in trained.items()}
    results |= of_all_stages(world, gradients)
    stats = step_statistics([engine.update(rows, goal, head_of)])
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
        for kind, wanted in (("model", weights), ("optimizer", engine.state_boxes()))
    }
    load_named_tensors(model, parts["model"])
    engine.load_state(parts["optimizer"])
    return engine


def state_of(engine: TrainEngine) -> dict[str, Tensor]:
    """All of a checkpoint's tensors, put together."""
    state = {name: tensor.clone() for name, tensor in named_full_tensors(engine.model)}
    own = {name: whole(tensor).clone() for name, tensor in engine.state_tensors().items()}
    return state | of_all_stages(engine._world, own)


def of_all_stages(world: World, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name; what two stages have is the same."""
    if world.dims.pipeline == 1:
        return own
    (first, *others), _ = shared_within(world, [own])
    for stage in others:
        for name in first.keys() & stage.keys():
            torch.testing.assert_close(first[name], stage[name], rtol=0, atol=0, equal_nan=True)
        first |= stage
    return first


def run_checkpoint(folder: Path, world: World, name: str = "even") -> dict[str, Tensor]:
    """Checkpoint after an update, go on; the restored engine goes on too, to compare."""
    case = CASES[name]
    engine = make_engine(load(case, folder, world), case, world)
    rows = rows_of_step().select(rows_of_rank(case.owners, world.rank, world.dims))
    engine.update(rows, objective())
    checkpoint = folder / f"checkpoint-of-{name_of(world.dims)}-{name}"
    checkpoint.mkdir(exist_ok=True)
    write_checkpoint(checkpoint, engine, world)
    at_checkpoint = state_of(engine)
    sum_over_ranks(world, [0.0])  # all have written
    restored = restored_engine(checkpoint, folder, world, case)
    engine.update(rows, objective())
    restored.update(rows, objective())
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
        resident = resident_weights(model, leaves="weights" in offload)
        torch.manual_seed(world.dims.data_coordinate(world.rank))
        for _ in range(2):
            with resident.at_work():
                logprobs = engine.predict(rows)[0]
                engine.update(rows, objective())
        state = engine.state_tensors()
        weights = named_full_tensors(model, resident.host.on_device)
        found = {f"weight/{n}": t.clone() for n, t in weights}
        found |= {f"moment/{n}": whole(engine.moments.on_device(t)) for n, t in state.items()}
        moments = [t for n, t in state.items() if n.endswith(OF_ADAMW[:2])]
        held = [w for n, w in model.named_parameters() if not is_adapter(n)] + moments
        sizes = [local_part(t).untyped_storage().nbytes() for t in held]
        results[f"{kind}/held"] = torch.tensor(sum(sizes))
        results |= {f"{kind}/bits/{n}": t for n, t in {**found, "logprobs": logprobs}.items()}
    return results


def run_foreign_checkpoints(folder: Path, world: World) -> dict[str, Tensor]:
    """Restore what every layout has saved."""
    found = {}
    for checkpoint in sorted(folder.glob("checkpoint-of-*")):
        case = CASES[checkpoint.name.rpartition("-")[2]]
        state = state_of(restored_engine(checkpoint, folder, world, case))
        found |= {f"{checkpoint.name}/{name}": tensor for name, tensor in state.items()}
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
    options["told"] = partial(told_by_holders, model)
    export_model(target, every_tensor(model), model_folder=folder / "untied", **options)
    return {}


def valued_rows() -> Experience:
    """The rows of the step with values of 0, and returns."""
    rows = rows_of_step()
    rows.values, rows.returns = torch.zeros(rows.num_tokens), rows.advantages
    return rows


def value_engine(model: PreTrainedModel, world: World) -> TrainEngine:
    training = TrainingSpec(autocast="none", micro_batch_tokens=30)
    optimizer = OptimizerSpec(learning_rate=1e-2)
    return TrainEngine(model, ValueHead(), training, optimizer, 10, world)


def run_value_model(folder: Path, world: World, lora: LoraSpec | None = None) -> dict[str, Tensor]:
    """A critic as it begins, and what it is behind two updates."""
    model = load_value_model(folder / "tied", world=world, lora=lora, seed=3)
    beginning = {f"model/{name}": tensor.clone() for name, tensor in named_full_tensors(model)}
    rows = valued_rows()
    mine = rows.select(rows_of_rank(CASES["even"].owners, world.rank, world.dims))
    engine = value_engine(model, world)
    norms = [engine.update(mine, VALUE_GOAL).values["critic/grad_norm"] for _ in range(2)]
    own = {f"trained/{name}": whole(tensor) for name, tensor in trained_tensors(model).items()}
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
    if world.dims.pipeline == 1:
        return {}
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
    """What reaches each rank of all tokens and its heads, and gradients of the way there and back.

    Six tokens a rank, two query heads; two key heads in all, which is no multiple of three ranks.
    """
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
    """What a rank has to score."""
    return [Answer([{"role": "user", "content": "1+1"}], str(rank))] * (rank + 1)


def scores_alone(folder: Path, ranks: int) -> list[list[float]]:
    """What one rank says of what each of several has to score."""
    model = load_reward_model(folder / "judge", torch.float32)
    with ChatTokenizer(folder / "judge") as chat:
        engine = ScoreEngine(model, chat, TrainingSpec())
        return [engine.scores(taken(rank)) for rank in range(ranks)]


def run_refusal(folder: Path, world: World) -> dict[str, Tensor]:
    """Score what the template refuses on the last rank, then what it takes on all of them."""
    model = load_reward_model(folder / "judge", torch.float32, world=world)
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
    """What an output layer says and its gradients, whole and as ranks hold it; `same`: the KL of a
    model to itself. Nothing where a pipeline has one at its end alone.
    """
    if world.dims.pipeline > 1:
        return {}
    generator = torch.Generator().manual_seed(5)
    states, ref_states = torch.randn(2, 7, 32, generator=generator)
    targets = torch.tensor([0, 48, 49, 96, 3, 60, 50])
    settings = LogprobSettings(0.7, chunk_tokens=2, entropy="gradient", squares=True)
    model, reference = (load_model(folder / name, world=world) for name in ("untied", "biased"))
    layer, ref_layer = (whole(one.lm_head.weight.detach()) for one in (model, reference))
    ref_weight = as_forward(reference, lambda: reference.lm_head.weight.detach())

    def told(hidden: Tensor, weight: Tensor, ref_weight: Tensor) -> dict[str, Tensor]:
        values = fused_logprobs(hidden, weight, targets, settings)
        reference = LastStates(ref_states, ref_weight)
        own = dict(zip(("logprobs", "entropy", "squares"), values, strict=True))
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
        values |= {"hidden": hidden.grad, "weight": whole(parameter.grad) / copies}
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
        "largest": torch.tensor(largest_over_ranks(world, world.rank * 3)),
    }


SCENARIOS: dict[str, Callable[[Path, World], dict[str, Tensor]]] = {
    "checkpoint-even": run_checkpoint,
    "checkpoint-adapters": partial(run_checkpoint, name="adapters"),
    "checkpoint-muon": partial(run_checkpoint, name="muon"),
    "offloaded": partial(run_offloaded, name="dropout_recomputed"),
    "offloaded_adapters": partial(run_offloaded, name="adapters_recomputed"),
    "export": run_export,
    "value_model": run_value_model,
    "value_model_of_adapters": partial(run_value_model, lora=CRITIC_LORA),
    "memory": run_memory,
    "memory_of_passes": run_memory_of_passes,
    "exchange": run_exchange,
    "heads": run_heads,
    "refusal": run_refusal,
    "bad_values": run_bad_values,
    "collectives": run_collectives,
}


def run_rank(rank: int, layout: str, port: int, root: Path, leave: Barrier, *, again: bool) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    results = root / layout
    meeting = MeetingPoint("127.0.1.1", port, "uid/actorRollout/0")
    address = f"127.0.1.{rank + 1}"
    dims, cpu = LAYOUTS[layout], torch.device("cpu")
    with open_world(rank, dims.size, cpu, dims=dims, address=address, meeting=meeting) as world:
        try:
            (write_foreign if again else write_results)(results, root, world)
            # A gloo group that is closed resets its connections, whatever others still read there.
            leave.wait(timeout=60)
        except BaseException:  # before the group is closed, which fails the others
            (results / f"failure-{rank}").write_text(f"{layout}, rank {rank}:\n{format_exc()}")
            raise


def write_results(results: Path, root: Path, world: World) -> None:
    for name, scenario in SCENARIOS.items():
        write_tensors(results / f"{name}-{world.rank}.safetensors", scenario(root, world))
    for name, case in cases_of(results.name).items():
        write_tensors(results / f"{name}-{world.rank}.safetensors", run_case(case, root, world))
    repeated = run_case(CASES["small_micro_batches"], root, world)
    write_tensors(results / f"again-{world.rank}.safetensors", repeated)


def write_foreign(results: Path, root: Path, world: World) -> None:
    path = results / f"foreign_checkpoints-{world.rank}.safetensors"
    write_tensors(path, run_foreign_checkpoints(root, world))


def run_world(layout: str, root: Path, *, again: bool = False) -> None:
    """Run all ranks of a layout, each a fork; where any fails, say what the first one met."""
    (root / layout).mkdir(exist_ok=again)
    with socket.create_server(("127.0.1.1", 0)) as server:
        port = server.getsockname()[1]
    forks = multiprocessing.get_context("fork")
    leave = forks.Barrier(LAYOUTS[layout].size)
    # The last rank first: whoever comes early waits for rank 0.
    ranks = {
        rank: forks.Process(
            target=run_rank,
            args=(rank, layout, port, root, leave),
            kwargs={"again": again},
            daemon=True,
        )
        for rank in reversed(range(LAYOUTS[layout].size))
    }
    for process in ranks.values():
        process.start()
    for process in ranks.values():
        process.join()
    codes = [process.exitcode or 0 for process in ranks.values()]
    if any(codes):
        told = sorted((root / layout).glob("failure-*"), key=lambda path: path.stat().st_mtime_ns)
        first = told[0].read_text() if told else layout
        sys.exit(f"{first}\nexit codes of ranks {list(ranks)}: {codes}")


if __name__ == "__main__":
    folder, layouts = Path(sys.argv[1]), sys.argv[2:]
    for again in (False, True):
        for layout in layouts:
            run_world(layout, folder, again=again)
