"""Updates that are computed by one rank and by several: models, rows, settings and layouts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from family_models import FAMILY_MODELS, MIXTURE_MODELS
from mtp_models import save_mtp_model
from seeing_models import SEEING, save_seeing_model
from tiny_models import (
    MIXTURE,
    NAMES,
    TEMPLATE,
    TWO_LAYERS,
    make_model,
    noise,
    save_model,
    save_tokenizer,
    write_model,
)
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, GuidanceSpec, KlSpec, PositiveExamplesSpec
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.policy_loss import PolicyLossSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_api.v1alpha1.training import MuonSpec, OptimizerSpec, TrainingSpec
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.images import packed
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.full_kl import REVERSE_KL, Divergence, HeadWithKl
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead, ValueHead
from ppojob_trainer.engine.mtp import Mtp
from ppojob_trainer.engine.objective import Aggregation, SupervisedObjective
from ppojob_trainer.engine.policy_objective import DistillationObjective, PolicyObjective
from ppojob_trainer.engine.train_engine import HeadOf, Objective, Supervised, TrainEngine
from ppojob_trainer.engine.value_objective import OutcomeObjective, ValueObjective
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.models.adapter_names import B
from ppojob_trainer.models.families import FAMILIES as TABLE
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.parallel.boxes import copy_pieces, full_tensor
from ppojob_trainer.parallel.collectives import gather_within
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.fsdp import fill
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience

SIZES = {**TWO_LAYERS, "num_hidden_layers": 3}  # two stages of a pipeline have not the same
VOCABULARY = 97  # not a multiple of any number of ranks
GROUPS, SAMPLES = 5, 3
WHOLE_BUDGET = 10_000
OF_STATES = 640
"""Tokens of a micro-batch of models whose layers have states: a row of any length counts 64."""
HEAD = PolicyHead(LogprobSettings(chunk_tokens=8, entropy="value"))


ADAMW = OptimizerSpec(learning_rate=1e-3, gradient_clip=0.5)
NO_DECAY = ADAMW.model_copy(update={"weight_decay": 0.0})
MUON = OptimizerSpec(type="muon", learning_rate=1e-3, weight_decay=0.1, gradient_clip=0.5)
OTHER_MUON = MUON.model_copy(
    update={"muon": MuonSpec(nesterov=False, ns_steps=3, scale_mode="shape_scaling")}
)
MTP = Mtp(coefficient=0.5, detach=False, head=PolicyHead(LogprobSettings(chunk_tokens=8)))
PLAIN = AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3)
ROUTERS = PLAIN.model_copy(update={"router_balance_coefficient": 0.3, "router_z_coefficient": 0.02})
BIASED = PLAIN.model_copy(update={"router_bias_rate": 0.05})
LOW_MOMENTS = OptimizerSpec(learning_rate=1e-3, moments_dtype="bfloat16", gradient_clip=0.5)
AMSGRAD = ADAMW.model_copy(update={"amsgrad": True})
SGD = OptimizerSpec(type="sgd", learning_rate=1e-1, momentum=0.9, gradient_clip=0.5)


def budget_of(family: str, tokens: int) -> int:
    """Tokens of a micro-batch: some, or what is as many rows where each counts 64."""
    states = TABLE[family].recurrence
    return OF_STATES if states is not None and states.rule != "convolution" else tokens


@dataclass(frozen=True)
class Case:
    """One way of computing the same two updates."""

    owners: tuple[int, ...]  # the coordinate of each group, of as many as there are
    budget: int = WHOLE_BUDGET  # tokens of a micro-batch
    model: str = "tied"
    autocast: str = "none"
    recompute: bool = False
    tiles: int = 0  # tokens of a tile of feed-forward blocks
    broken: bool = False
    lora: LoraSpec | None = None
    replayed: bool = False  # updates take the experts that a record gives
    routers: AlgorithmSpec | None = None  # of their losses, and of the bias they choose by
    full_kl: bool = False
    teacher: Divergence | None = None  # the loss, instead of that of the policy
    partition: bool = False  # the loss is that of FlowRL, whose network has log Z of a prompt
    outcomes: bool = False  # the loss is that of a process reward model
    teachers: tuple[int, ...] = ()  # which of two models each group has; none for one
    taught: bool = False  # the teacher reads longer prompts than the policy
    optimizer: OptimizerSpec = ADAMW
    long: int | None = None  # tokens of the first response; None for as few as the others have
    seeing: bool = False  # prompts show images
    contexts: bool = False  # rows have several
    # right responses, all of the first coordinate, are learnt as answers, and others, all of the
    # second, are given
    positives: bool = False
    supervised: bool = False  # given answers are learnt beside, all by the first coordinate
    mtp: Mtp | None = None  # how the layer is trained that predicts further tokens
    nudged: int = 0  # weights are one rounding away from those of the model, in which directions

    @property
    def alone(self) -> "Case":
        """The same on one rank, as plainly as can be."""
        plain = {"budget": WHOLE_BUDGET, "recompute": False, "tiles": 0}
        return replace(self, owners=(0,) * GROUPS, **plain)


CASES = {
    "even": Case((0, 1, 0, 1, 0)),
    "spread": Case((0, 3, 1, 2, 3), budget=30),
    "even_untied": Case((0, 1, 0, 1, 0), model="untied"),
    "small_micro_batches": Case((0, 0, 0, 0, 1), budget=40, tiles=5),
    "other_micro_batches": Case((1, 0, 0, 1, 1), budget=45, model="untied"),
    "a_rank_without_rows": Case((1, 1, 1, 1, 1), budget=40),
    "recomputed": Case((0, 1, 0, 1, 1), budget=40, recompute=True, tiles=7),
    "biases": Case((0, 1, 0, 1, 0), model="biased"),
    "qwen2": Case((0, 1, 0, 1, 0), budget=40, model="qwen2"),
    "qwen3": Case((0, 1, 0, 1, 0), budget=40, model="qwen3"),
    "one_key_head": Case((0, 1, 0, 1, 0), budget=40, model="one_key_head", recompute=True),
    "qwen3_recomputed": Case((0, 1, 1, 1, 0), model="qwen3_tied", recompute=True),
    "experts": Case((0, 0, 0, 0, 1), budget=40, model="qwen3_moe", routers=ROUTERS),
    "experts_replayed": Case(
        (0, 0, 0, 0, 1), budget=40, model="qwen3_moe", recompute=True, replayed=True
    ),
    "experts_recomputed": Case(
        (1, 1, 1, 1, 1), budget=40, model="qwen3_moe", recompute=True, routers=ROUTERS
    ),
    "experts_by_a_bias": Case((0, 0, 0, 0, 1), budget=30, model="glm4_moe", routers=BIASED),
    "experts_by_muon": Case((0, 1, 1, 1, 0), budget=40, model="qwen3_moe", optimizer=MUON),
    "stacks_replayed": Case(
        (0, 0, 0, 0, 1), budget=40, model="gpt_oss", recompute=True, replayed=True
    ),
    "adapters_of_experts": Case(
        (0, 1, 0, 1, 0), model="qwen2_moe", lora=LoraSpec(rank=8, experts=True)
    ),
    "adapters_of_stacks": Case(
        (0, 0, 0, 0, 1),
        budget=40,
        model="gpt_oss",
        recompute=True,
        replayed=True,
        lora=LoraSpec(rank=8, experts=True),
    ),
    "adapters": Case((0, 1, 0, 1, 0), budget=40, lora=LoraSpec(rank=3)),
    "adapters_beside_nf4": Case(
        (0, 1, 1, 1, 0), budget=40, tiles=9, lora=LoraSpec(rank=3, base_type="nf4")
    ),
    "adapters_with_lengths": Case(
        (0, 1, 1, 1, 0),
        budget=40,
        model="biased",
        recompute=True,
        tiles=7,
        lora=LoraSpec(rank=3, weight_decomposed=True),
    ),
    "adapters_with_dropout": Case(
        (0, 1, 1, 1, 0), 40, recompute=True, tiles=7, lora=LoraSpec(rank=3, dropout=0.3)
    ),
    "adapters_with_dropout_behind": Case(
        (0, 1, 1, 1, 0), 40, "phi3", lora=LoraSpec(rank=3, dropout=0.3, dropout_position="post")
    ),
    "adapters_from_weights": Case(
        (0, 1, 0, 1, 0), 40, optimizer=NO_DECAY, lora=LoraSpec(rank=3, init="pissa")
    ),
    "adapters_of_several_with_lengths": Case(
        (0, 1, 1, 1, 0), 40, "phi3", lora=LoraSpec(rank=3, weight_decomposed=True)
    ),
    "adapters_of_halves": Case(
        (0, 1, 0, 1, 0), 40, "granitemoeshared", lora=LoraSpec(rank=8, experts=True)
    ),
    "adapters_of_latents": Case((0, 1, 0, 1, 0), 40, "deepseek_v3", lora=LoraSpec(rank=3)),
    "experts_beside_blocks": Case(
        (0, 0, 0, 0, 1), 40, "experts_beside", recompute=True, routers=ROUTERS
    ),
    "experts_behind_no_norm": Case((0, 1, 0, 1, 0), 80, "flex_olmo"),
    "a_biased_head": Case((0, 1, 0, 1, 0), 40, "phi", optimizer=SGD),
    "adapters_of_biased_layers": Case((0, 1, 0, 1, 0), model="biased", lora=LoraSpec(rank=2)),
    "adapters_recomputed": Case(
        (1, 1, 1, 1, 1),
        model="phi3",
        recompute=True,
        lora=LoraSpec(rank=2, target_modules=("qkv_proj", "down_proj")),  # fewer rows than ranks
    ),
    "shared_keys_recomputed": Case((1, 1, 1, 1, 1), model="gemma4_text", recompute=True),
    "adapters_of_told_layers": Case((0, 1, 0, 1, 0), model="gemma4_text", lora=LoraSpec(rank=2)),
    "muon": Case((0, 1, 0, 1, 0), budget=40, model="phi3", optimizer=MUON),
    "adapters_beside_whole_layers": Case(
        (0, 1, 0, 1, 0), lora=LoraSpec(rank=3, modules_to_save=("embed_tokens",))
    ),
    "muon_of_adapters": Case((0, 1, 0, 1, 0), optimizer=OTHER_MUON, lora=LoraSpec(rank=3)),
    "low_moments": Case((0, 1, 0, 1, 0), budget=40, optimizer=LOW_MOMENTS),
    "amsgrad": Case((0, 1, 0, 1, 0), budget=40, optimizer=AMSGRAD),
    "sgd": Case((0, 1, 0, 1, 0), budget=40, optimizer=SGD),
    "long_rows": Case((0, 1, 0, 1, 1), long=1200),
    "contexts": Case((0, 1, 0, 1, 0), budget=40, contexts=True),
    "contexts_of_states": Case((0, 1, 0, 1, 1), OF_STATES, model="nemotron_h", contexts=True),
    "images_behind_layers": Case((0, 1, 0, 1, 0), budget=60, model="seeing_3", seeing=True),
    "images_of_glm": Case(  # no gradient comes to a part of its keys' biases
        (0, 1, 0, 1, 1), 60, model="seeing_glm", recompute=True, seeing=True, optimizer=SGD
    ),
    "images_in_lines": Case((0, 1, 0, 1, 0), 60, model="seeing_lines", recompute=True, seeing=True),
    "images_in_tiles": Case((0, 1, 0, 1, 0), budget=60, model="seeing_tiles", seeing=True),
    "images_in_squares": Case(  # biases of its tower's keys have no gradient but for rounding
        (0, 1, 0, 1, 1), 60, model="seeing_squares", recompute=True, seeing=True, optimizer=SGD
    ),
    "images_in_crops": Case(  # as above
        (0, 1, 0, 1, 1), 60, model="seeing_crops", seeing=True, optimizer=SGD
    ),
    "images_of_gemma_4": Case(
        (0, 1, 0, 1, 1), 160, model="seeing_pooled", recompute=True, seeing=True, optimizer=SGD
    ),
    "images_of_told_layers": Case(
        (0, 1, 0, 1, 0), 160, model="seeing_told", seeing=True, optimizer=SGD
    ),
    "images_and_states": Case(  # biases of its tower's keys as above
        (0, 1, 0, 1, 0), 100, model="seeing_splits", recompute=True, seeing=True, optimizer=SGD
    ),
    "images_in_grids": Case((0, 1, 0, 1, 0), 160, model="seeing_grids", seeing=True, optimizer=SGD),
    "images": Case((0, 1, 0, 1, 0), budget=60, model="seeing", recompute=True, seeing=True),
    "full_kl": Case((0, 1, 0, 1, 0), budget=40, model="untied", full_kl=True),
    "teacher": Case((0, 1, 0, 1, 0), budget=40, teacher=Divergence("jsd", 0.3), taught=True),
    "teachers": Case(
        (0, 1, 1, 1, 0), budget=30, teacher=Divergence("forward_kl"), teachers=(0, 1, 1, 1, 0)
    ),
    "positives": Case((0, 1, 0, 1, 0), budget=30, positives=True),
    "supervised": Case((1, 1, 0, 1, 0), budget=40, supervised=True),
    "partition": Case((0, 1, 0, 1, 1), budget=30, partition=True),
    "partition_beside_adapters": Case((0, 1, 1, 1, 0), lora=LoraSpec(rank=3), partition=True),
    "mtp": Case((0, 1, 0, 1, 1), budget=30, model="with_mtp", mtp=MTP, contexts=True),
    "mtp_recomputed": Case((1, 1, 1, 1, 1), model="with_mtp", mtp=MTP, recompute=True),
    "mtp_by_muon": Case((0, 1, 1, 1, 0), model="mimo_with_mtp", mtp=MTP, optimizer=MUON),
    "outcomes": Case((0, 1, 0, 1, 1), budget=40, model="untied", outcomes=True),
    "dropout": Case((0, 1, 0, 1, 0), budget=40, model="dropout"),
    "dropout_recomputed": Case((0, 1, 0, 1, 0), budget=40, model="dropout", recompute=True),
    "bfloat16": Case((0, 1, 0, 1, 0), budget=40, autocast="bfloat16"),
    "a_gradient_that_is_not_finite": Case((0, 1, 0, 1, 0), broken=True),
}
ABOVE = ("llama", "qwen2", "qwen3", "qwen3_moe")
CUT_AS_OTHERS = (
    *("gemma", "glm4", "seed_oss", "exaone4", "ernie4_5", "ministral3"),
    *("glm4_moe_lite", "deepseek_v2", "youtu", "mimo", "cwm", "arcee", "granitemoe", "cohere"),
    *("phi", "starcoder2", "glm", "jais2", "nemotron", "vaultgemma", "ministral", "olmo"),
    *("mellum", "solar_open", "dots1", "exaone_moe", "hunyuan_v1_moe", "flex_olmo"),
    *("granite_swa", "helium", "minicpm3", "phimoe"),
)
KEY_BIASES = ("gpt_neox", "gpt2", "opt", "stablelm")
"""Families with biases of keys that have no gradient but for rounding."""
FAMILIES = {
    family: Case(
        (0, 1, 0, 1, 0),
        budget_of(family, 80),
        family,
        optimizer=SGD if family in KEY_BIASES else ADAMW,
    )
    for family in FAMILY_MODELS
    if family not in (*ABOVE, *CUT_AS_OTHERS) and not TABLE[family].is_multimodal
}
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
    "t4": ParallelDims(tensor=4),  # twice as many as the models have key heads
    "2x1t2": ParallelDims(replicate=2, tensor=2),
    "s2t2": ParallelDims(sequence=2, tensor=2),
    "p3": ParallelDims(pipeline=3),
    "2p2": ParallelDims(pipeline=2, shard=2),
}
EXPERT_LAYOUTS = {
    "e2": ParallelDims(shard=2, expert=2),
    "2x1s2e2": ParallelDims(replicate=2, sequence=2, expert=2),
    "2t2e2": ParallelDims(shard=2, tensor=2, expert=2),
    "2e2p2": ParallelDims(pipeline=2, shard=2, expert=2),
}
"""Of ranks that share the experts of a layer."""
ALL_LAYOUTS = {**LAYOUTS, **EXPERT_LAYOUTS}

MODELS: Mapping[str, tuple[type[transformers.PreTrainedModel], dict[str, object]]] = {
    **{family: FAMILY_MODELS[family] for family in FAMILIES},
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        {**FAMILY_MODELS["gemma2"][1], "tie_word_embeddings": True},
    ),
    "tied": (transformers.LlamaForCausalLM, {"tie_word_embeddings": True, "pad_token_id": 60}),
    "untied": (transformers.LlamaForCausalLM, {}),
    **{family: FAMILY_MODELS[family] for family in ("phi", "flex_olmo")},
    "experts_beside": MIXTURE_MODELS["gemma4_text"],
    "biased": (transformers.LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (transformers.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3ForCausalLM, {"head_dim": 8, "attention_bias": True}),
    "qwen3_tied": (transformers.Qwen3ForCausalLM, {"head_dim": 8, "tie_word_embeddings": True}),
    "one_key_head": (transformers.Qwen3ForCausalLM, {"head_dim": 8, "num_key_value_heads": 1}),
    "qwen3_moe": (transformers.Qwen3MoeForCausalLM, MIXTURE),
    "dropout": (transformers.LlamaForCausalLM, {"attention_dropout": 0.3}),
}
DIVERGENCES = ("reverse_kl", "forward_kl", "jsd")
CRITIC_LORA = LoraSpec(rank=3)
VALUE_MODELS: Mapping[str, dict[str, Any]] = {
    "value_model": {},
    "value_model_of_adapters": {"lora": CRITIC_LORA},
    "value_model_of_states": {"model_name": "granitemoehybrid"},
    "value_model_of_experts": {"model_name": "ernie4_5_moe"},
}
"""Critics: what `run_value_model` is told of each."""
VALUE_GOAL = ValueObjective(value_clip=0.5, aggregation=Aggregation("token_mean"))
NO_TOOLS = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"


def save_models(folder: Path, names: Collection[str] | None = None) -> None:
    """What the cases train, or of these the models of some names; with them `bad` and `judge`."""
    for name in MODELS:
        if names is None or name in names:
            save_plain_model(folder, name)
    for name, kind in SEEING.items():
        if names is not None and name not in names:
            continue
        sizes = {"num_hidden_layers": 3, "tie_word_embeddings": True}
        if name == "seeing_told":  # two of its four layers have keys of their own
            sizes |= {"num_hidden_layers": 4, "initializer_range": 0.1}
        _save_shaken(save_seeing_model(folder / name, kind, **sizes), folder / name)
    sizes = {**SIZES, "vocab_size": VOCABULARY, "pad_token_id": None}
    save_mtp_model(folder / "with_mtp", "glm4_moe", **sizes)
    save_mtp_model(folder / "mimo_with_mtp", "mimo", **sizes)
    bad = make_model(seed=3, **SIZES, vocab_size=VOCABULARY)
    with torch.no_grad():
        bad.model.embed_tokens.weight[-40:] = 0.0
        bad.model.norm.weight[0] = torch.nan
    bad.save_pretrained(folder / "bad")
    classifier = {"vocab_size": len(NAMES), "num_labels": 1, "pad_token_id": 0}
    save_model(folder / "judge", transformers.LlamaForSequenceClassification, **SIZES, **classifier)
    save_tokenizer(folder / "judge", template=NO_TOOLS + TEMPLATE)


def save_plain_model(folder: Path, name: str = "tied") -> None:
    """One of `MODELS`, where its cases look for it."""
    model_class, options = MODELS[name]
    untied = {"tie_word_embeddings": False}
    sizes = {**SIZES, "vocab_size": VOCABULARY, "pad_token_id": None, **untied, **options}
    _save_shaken(make_model(model_class, seed=3, **sizes), folder / name)


def _save_shaken(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Save a model of which nothing is 0 or 1 throughout."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.3 * torch.randn(weight.shape))
    write_model(folder, model)


def rows_of_step(
    *,
    broken: bool = False,
    long: int | None = None,
    contexts: bool = False,
    form: ImageForm | None = None,
) -> Experience:
    """Rows of a step; prompts begin with images of several sizes where a model takes some."""
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
    shown: list[bytes] = []
    if form is not None:
        shown = [packed([noise(n, (8 + 9 * n, 30))] * (n % 3)) for n in range(GROUPS)]
        prompts = [
            torch.tensor(form.expanded([form.token] * (n % 3) + prompt.tolist(), shown[n]))
            for n, prompt in enumerate(prompts)
        ]
    rows = Experience(
        prompts=prompts,
        row_groups=torch.arange(GROUPS).repeat_interleave(SAMPLES),
        response_tokens=torch.randint(VOCABULARY, (tokens,), generator=generator),
        lengths=lengths,
        mask=torch.rand(tokens, generator=generator) < 0.8,
        rollout_logprobs=torch.zeros(tokens),
        ref_logprobs=torch.full((tokens,), -4.0),
        advantages=advantages,
        images=shown,
    )
    if contexts:
        later = rows.offsets[:-1][lengths > 4] + 2
        rows.context_starts[later], rows.mask[later] = True, False  # which it is given
    return rows


def rows_of_rank(owners: Sequence[int], rank: int, dims: ParallelDims) -> Tensor:
    """Rows of the rank's data-parallel coordinate, those owners counted around."""
    mine, size = dims.data_coordinate(rank), dims.data_size
    return torch.tensor(
        [row for row in range(GROUPS * SAMPLES) if owners[row // SAMPLES] % size == mine],
        dtype=torch.int64,
    )


def name_of(dims: ParallelDims) -> str:
    return next(name for name, layout in ALL_LAYOUTS.items() if layout == dims)


def make_engine(
    model: transformers.PreTrainedModel,
    case: Case,
    world: World,
    offload: Sequence[Offloaded] = (),
    *,
    reshard: bool = True,
) -> TrainEngine:
    training = TrainingSpec(
        autocast=case.autocast,
        micro_batch_tokens=case.budget,
        activation_checkpointing=case.recompute,
        mlp_tile_tokens=case.tiles,
        reshard_after_forward=reshard,
    )
    return TrainEngine(
        model, HEAD, training, case.optimizer, 10, world, offload, case.routers, mtp=case.mtp
    )


def load(case: Case, folder: Path, world: World) -> transformers.PreTrainedModel:
    model = load_model(
        folder / case.model,
        world=world,
        lora=case.lora,
        seed=3,
        with_tower=case.seeing,
        learns_log_z=case.partition,
        with_mtp=case.mtp is not None,
    )
    for name, weight in model.named_parameters():
        if name == "log_partition.output.weight":  # else nothing in front has a gradient
            fill(weight, torch.linspace(-0.1, 0.2, weight.numel())[None])
        has_lengths = case.lora is not None and case.lora.weight_decomposed
        # Of experts for the same reason; else lengths would be those of the weights alone.
        if name.endswith(f"_{B}") or (has_lengths and name.endswith(B)):
            fill(weight, torch.linspace(-0.1, 0.2, weight.numel()).view(weight.shape))
    if case.nudged:
        generator = torch.Generator().manual_seed(case.nudged)
        with torch.no_grad():
            for weight in filter(Tensor.is_floating_point, model.parameters()):  # no codes
                signs = torch.rand(weight.shape, generator=generator).sub(0.5).sign()
                weight.mul_(1.0 + torch.finfo(weight.dtype).eps * signs)
    return model


def objective(
    *, full_kl: bool = False, partition: bool = False, positives: bool = False
) -> PolicyObjective:
    kl = KlSpec(in_="loss", estimator="full", coefficient=0.3) if full_kl else KlSpec()
    loss = PolicyLossSpec(type="flowrl" if partition else "clip")
    return PolicyObjective.of(
        AlgorithmSpec(
            type="grpo",
            prompts_per_step=GROUPS,
            samples_per_prompt=SAMPLES,
            kl=kl,
            policy_loss=loss,
            positive_examples=PositiveExamplesSpec(coefficient=0.5) if positives else None,
            guidance=GuidanceSpec(gamma=0.2) if positives else None,
            loss_aggregation="sequence_mean_token_mean" if partition else "token_mean",
        )
    )


def head_with_kl(
    engine: TrainEngine, folder: Path, world: World, name: str, divergence: Divergence = REVERSE_KL
) -> HeadOf:
    """The KL, or another divergence, to another model."""
    reference = ForwardEngine(load_model(folder / name, world=world), HEAD, engine._training, world)
    return lambda rows: HeadWithKl(HEAD, reference.last_states(rows), divergence)


def run_case(case: Case, folder: Path, world: World) -> dict[str, Tensor]:
    """Log-probabilities of the rank's rows, the first gradient, the weights after two updates."""
    model = load(case, folder, world)
    engine = make_engine(model, case, world)
    form = read_form(folder / case.model) if case.seeing else None
    everything = rows_of_step(broken=case.broken, long=case.long, contexts=case.contexts, form=form)
    everything.teachers = list(case.teachers)
    if case.taught:
        everything.teacher_prompts = [
            everything.prompts[group].repeat(4 + row % 2)
            for row, group in enumerate(everything.row_groups.tolist())
        ]
    everything.critic_ref_logprobs = torch.full((everything.num_tokens,), -4.0)
    everything.outcomes = everything.token_rows % 3 / 2
    if case.positives:  # none of the second coordinate; some have no advantage
        everything.positives = everything.token_rows % (2 * SAMPLES) == 1
        everything.given = everything.token_rows % (2 * SAMPLES) == SAMPLES + 1
        assert everything.advantages is not None
        everything.advantages[everything.token_rows < SAMPLES] = 0.0
    rows = everything.select(rows_of_rank(case.owners, world.rank, world.dims))
    results = {"logprobs": engine.predict(rows, records=case.replayed)[0]}
    if rows.experts is not None and rows.prompt_experts is not None:
        # Others than routers would choose now.
        rows.experts = (rows.experts + 1) % MIXTURE["num_experts"]
        rows.prompt_experts = (rows.prompt_experts + 1) % MIXTURE["num_experts"]
    heads = [head_with_kl(engine, folder, world, "tied")] if case.full_kl else []
    chosen = {"full_kl": case.full_kl, "partition": case.partition, "positives": case.positives}
    goal: Objective = objective(**chosen)
    if case.outcomes:
        goal = OutcomeObjective(beta=0.5)
    if case.teacher is not None:
        names = ("untied", "tied") if case.teachers else ("untied",)
        heads = [head_with_kl(engine, folder, world, name, case.teacher) for name in names]
        goal = DistillationObjective(Aggregation("token_mean"))
    coordinate, supervised = world.dims.data_coordinate(world.rank), None
    if case.supervised:
        given = everything.select(range(SAMPLES) if coordinate == 0 else ())
        supervised = Supervised(given, SupervisedObjective(0.4, uncertain_tokens=True), HEAD, 0.6)
    torch.manual_seed(coordinate)
    engine.update(rows, goal, heads, supervised)
    trained = {n: copy_pieces(p, p.grad) for n, p in model.named_parameters() if p.requires_grad}
    gradients = {f"gradient/{n}": full_tensor(gradient).clone() for n, gradient in trained.items()}
    results |= of_all_stages(world, gradients)
    stats = step_statistics([engine.update(rows, goal, heads, supervised)])
    results |= {f"weight/{n}": t.clone() for n, t in named_full_tensors(model)}
    if case.lora is not None and case.lora.base_type is not None:
        results |= {f"base/{n}": t.clone() for n, t in named_full_tensors(model, merges=False)}
    results |= {f"stats/{n}": torch.tensor(v, dtype=torch.float64) for n, v in stats.items()}
    return results


def of_all_stages(world: World, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name; what two stages have is the same."""
    if world.dims.pipeline == 1:
        return own
    (first, *others), _ = gather_within(world, [own])
    for stage in others:
        for name in first.keys() & stage.keys():
            torch.testing.assert_close(first[name], stage[name], rtol=0, atol=0, equal_nan=True)
        first |= stage
    return first


def valued_rows() -> Experience:
    """The rows of the step with values of 0, and returns."""
    rows = rows_of_step()
    rows.values, rows.returns = torch.zeros(rows.num_tokens), rows.advantages
    return rows


def value_engine(model: transformers.PreTrainedModel, world: World) -> TrainEngine:
    budget = budget_of(model.config.model_type, 40)
    training = TrainingSpec(autocast="none", micro_batch_tokens=budget)
    optimizer = OptimizerSpec(learning_rate=1e-2)
    return TrainEngine(model, ValueHead(), training, optimizer, 10, world)
