"""Pipeline stages: the layers, and the experts, of a model that this rank holds.

Modules have the same names at each stage; those of other stages are replaced by identities. So code
that iterates over weights sees those of the stage only. With expert parallelism separate experts
are distributed in the same way; stacked experts are sharded instead.
"""

import copy
import re
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor, nn

from ppojob_trainer.models.config_files import TOWER, TOWER_NAMES
from ppojob_trainer.models.experts import Experts, experts_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.boxes import is_first_holder
from ppojob_trainer.parallel.experts import ExpertRanks
from ppojob_trainer.parallel.pipeline import PipelineRanks

_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")
_EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")
_STAGE: Final = "pipeline_stage"
_EMBEDDING_STEPS: Final = {
    "embedding_multiplier": 1.0,  # of Granite
    "embedding_dropout": 0.0,  # of StarCoder2
    "embed_dropout": nn.Identity(),  # of Phi
    "emb_dropout": nn.Identity(),  # of GPT-NeoX
}
"""What base models apply to embeddings, and the no-ops of it."""


class PassThrough(nn.Module):
    """Identity in the place of a module of another stage."""

    block_type = ""  # read by Nemotron's decoder

    def forward(self, hidden_states: Tensor, *_args: object, **_options: object) -> Any:
        """Return the hidden states unchanged."""
        return hidden_states


class TuplePassThrough(PassThrough):
    """The same in place of a layer that returns a tuple."""

    def forward(self, hidden_states: Tensor, *_args: object, **_options: object) -> Any:
        """Return the hidden states unchanged, and no attention weights."""
        return hidden_states, None


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """The stage of this rank; the whole model without pipeline and expert parallelism."""

    ranks: PipelineRanks = field(default_factory=PipelineRanks)
    layers: int = 0  # of the whole model
    outline: Any = None  # the whole model on the meta device; None if the stage is all of it
    is_tied: bool = False  # whether first and last stage both hold the tied embedding
    expert_ranks: ExpertRanks = field(default_factory=ExpertRanks)
    experts: int = 0  # separate experts of each layer; 0 if no ranks share them

    def first_holder(self, name: str) -> int:
        """Return the first stage with a tensor, by its name in the model or in a file."""
        if ".embed_tokens." in name or name.startswith(TOWER_NAMES):
            return 0
        if (layer := _LAYER.search(name)) is None:
            return self.ranks.size - 1
        stages = range(self.ranks.size)
        return next(s for s in stages if int(layer[1]) in layers_of(s, stages, self.layers))

    def holder_of_expert(self, name: str) -> int | None:
        """Return the expert-parallel rank with a tensor; None unless it is an expert's."""
        expert = _EXPERT.search(name) if self.experts else None
        return expert and self.expert_ranks.holder(int(expert[1]), self.experts)

    def is_first_copy(self, name: str, tensor: Tensor) -> bool:
        """Whether this is the first rank with this shard of a tensor of its stage."""
        is_first = self.outline is None or self.first_holder(name) == self.ranks.number
        return is_first and is_first_holder(tensor)


def layers_of(stage: int, stages: range, layers: int) -> range:
    """Return the layers of a stage: equal runs, the first ones longer, as the last has the head."""
    count = len(stages)
    return range(-(-layers * stage // count), -(-layers * (stage + 1) // count))


def stage_of(model: nn.Module) -> PipelineStage:
    """Return the stage that a model is."""
    stage: PipelineStage = getattr(model, _STAGE, WHOLE)
    return stage


WHOLE: Final = PipelineStage()
"""The whole model."""


def outline_of(model: nn.Module) -> nn.Module:
    """Return the whole model, on the meta device if this is a stage of it."""
    outline: nn.Module | None = stage_of(model).outline
    return model if outline is None else outline


def keep_stage(model: nn.Module, ranks: PipelineRanks, expert_ranks: ExpertRanks) -> None:
    """Reduce a transformers model on the meta device to a rank's stage."""
    if ranks.size == expert_ranks.size == 1:
        return
    base: Any = model.base_model
    outline, layers = copy.deepcopy(model), len(base.layers)
    is_tied = ranks.size > 1 and _keep_layers(model, ranks)
    count = 0
    for experts in experts_of(model):
        experts.expert_ranks = expert_ranks
        if isinstance(experts, Experts) and expert_ranks.size > 1:
            count = len(experts)
            for expert in set(range(count)) - set(expert_ranks.held(count)):
                experts[expert] = PassThrough()
    stage = PipelineStage(ranks, layers, outline, is_tied, expert_ranks, count)
    setattr(model, _STAGE, stage)


def _skip_embedding_steps(base: Any) -> None:
    """Replace by no-ops what a base model applies to embeddings, in a later stage."""
    for name, nothing in _EMBEDDING_STEPS.items():
        if hasattr(base, name):
            setattr(base, name, nothing)
    if hasattr(base.config, "mup_enabled"):  # Trinity's multiplier
        base.config.mup_enabled = False


def _keep_layers(model: nn.Module, ranks: PipelineRanks) -> bool:
    """Remove the other stages' modules, and return whether both ends hold the tied embedding."""
    base: Any = model.base_model
    layers = len(base.layers)
    heads = {name: module for name, module in model.named_children() if module is not base}
    tower = TOWER.rstrip(".")
    if heads.pop(tower, None) is not None and not ranks.is_first:
        setattr(model, tower, PassThrough())
    embedding = base.embed_tokens.weight
    tied = {name for name, head in heads.items() if getattr(head, "weight", None) is embedding}
    own = layers_of(ranks.number, range(ranks.size), layers)
    recurrence = FAMILIES[base.config.model_type].recurrence
    has_tuples = recurrence is not None and recurrence.returns_tuples
    for layer in range(layers):
        if layer not in own:
            base.layers[layer] = TuplePassThrough() if has_tuples else PassThrough()
    if not ranks.is_first and not (tied and ranks.is_last):
        base.embed_tokens = PassThrough()
    if not ranks.is_first:
        _skip_embedding_steps(base)
    if not ranks.is_last:
        base.norm = PassThrough()
        for name in heads.keys() - (tied if ranks.is_first else set()):
            setattr(model, name, PassThrough())
    return bool(tied)


def shared_embedding(model: nn.Module) -> nn.Parameter | None:
    """Return the tied weight that the first and the last stage both train, at those two."""
    stage, base = stage_of(model), model.base_model
    if not stage.is_tied or not (stage.ranks.is_first or stage.ranks.is_last):
        return None
    weight: nn.Parameter = base.embed_tokens.weight  # type: ignore[union-attr, assignment]
    return weight if weight.requires_grad else None
