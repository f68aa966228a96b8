"""Stages of a pipeline: the run of a model's layers that a rank has, of all that the model has.

Layers, embedding, last norm and head stand in the model under their names where a stage has them;
in the place of the others stands what hands hidden states on. So whatever goes through a model's
weights goes through those of the stage. Where ranks share the experts of a layer, each has those of
its own under their names, in the same way; stacks of experts are cut over the ranks instead.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ppojob_trainer.models.config_files import TOWER, TOWER_NAMES
from ppojob_trainer.models.experts import Experts, experts_of
from ppojob_trainer.parallel.boxes import is_first_holder
from ppojob_trainer.parallel.experts import ExpertRanks
from ppojob_trainer.parallel.pipeline import PipelineRanks

_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")
_EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")
_STAGE: Final = "pipeline_stage"


class HandsOn(nn.Module):
    """What stands in the place of a module that another stage has."""

    block_type = ""  # which Nemotron asks its layers for

    def forward(self, hidden_states: Tensor, *_args: object, **_options: object) -> Tensor:
        """The states as they came."""
        return hidden_states


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """The stage of this rank; without a pipeline, or ranks that share experts, all of the model."""

    ranks: PipelineRanks = field(default_factory=PipelineRanks)
    layers: int = 0  # of the whole model
    outline: Any = None  # the whole model, without values; None where the stage is all of it
    is_tied: bool = False  # whether the head's weight is the embedding, which both ends have then
    expert_ranks: ExpertRanks = field(default_factory=ExpertRanks)
    experts: int = 0  # of each layer, with names of their own; 0 where ranks share none of those

    def first_holder(self, name: str) -> int:
        """The first stage that has a tensor, by its name in the model or in a file."""
        if ".embed_tokens." in name or name.startswith(TOWER_NAMES):
            return 0
        if (layer := _LAYER.search(name)) is None:
            return self.ranks.size - 1
        stages = range(self.ranks.size)
        return next(s for s in stages if int(layer[1]) in layers_of(s, stages, self.layers))

    def holder_of_expert(self, name: str) -> int | None:
        """Which of the ranks that share experts has a tensor; None where it is no expert's."""
        expert = _EXPERT.search(name) if self.experts else None
        return expert and self.expert_ranks.holder(int(expert[1]), self.experts)

    def counts(self, name: str, tensor: Tensor) -> bool:
        """Whether no rank before this one holds the same part of a tensor of this stage."""
        is_first = self.outline is None or self.first_holder(name) == self.ranks.number
        return is_first and is_first_holder(tensor)

    def states_like(self, tokens: int, device: torch.device) -> Tensor:
        """(1, tokens, h) of the type of hidden states between stages, without values."""
        embedding = self.outline.get_input_embeddings().weight
        width = embedding.shape[1]
        return torch.empty(1, tokens, width, dtype=embedding.dtype, device=device)


def layers_of(stage: int, stages: range, layers: int) -> range:
    """The layers of a stage: equal runs, and the first ones longer, for the last has the head."""
    count = len(stages)
    return range(-(-layers * stage // count), -(-layers * (stage + 1) // count))


def stage_of(model: nn.Module) -> PipelineStage:
    """The stage that a model is."""
    stage: PipelineStage = getattr(model, _STAGE, WHOLE)
    return stage


WHOLE: Final = PipelineStage()
"""All of a model."""


def outline_of(model: nn.Module) -> nn.Module:
    """The model of which this may be a stage; without values then."""
    outline: nn.Module | None = stage_of(model).outline
    return model if outline is None else outline


def keep_stage(model: nn.Module, ranks: PipelineRanks, expert_ranks: ExpertRanks) -> None:
    """Leave of a model of transformers, on the meta device, what a rank's stage has."""
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
                experts[expert] = HandsOn()
    stage = PipelineStage(ranks, layers, outline, is_tied, expert_ranks, count)
    setattr(model, _STAGE, stage)


def _keep_layers(model: nn.Module, ranks: PipelineRanks) -> bool:
    """Leave of a model what stands at a stage, and say whether both ends have its embedding."""
    base: Any = model.base_model
    layers = len(base.layers)
    heads = {name: module for name, module in model.named_children() if module is not base}
    tower = TOWER.rstrip(".")
    if heads.pop(tower, None) is not None and not ranks.is_first:
        setattr(model, tower, HandsOn())
    embedding = base.embed_tokens.weight
    tied = {name for name, head in heads.items() if getattr(head, "weight", None) is embedding}
    own = layers_of(ranks.number, range(ranks.size), layers)
    for layer in range(layers):
        if layer not in own:
            base.layers[layer] = HandsOn()
    if not ranks.is_first and not (tied and ranks.is_last):
        base.embed_tokens = HandsOn()
    if not ranks.is_first and hasattr(base, "embedding_multiplier"):
        base.embedding_multiplier = 1.0  # Granite's, which the first stage has multiplied by
    if not ranks.is_last:
        base.norm = HandsOn()
    if not ranks.is_last:
        for name in heads.keys() - (tied if ranks.is_first else set()):
            setattr(model, name, HandsOn())
    return bool(tied)


def shared_embedding(model: nn.Module) -> nn.Parameter | None:
    """The weight that both the first and the last stage train, at those two."""
    stage, base = stage_of(model), model.base_model
    if not stage.is_tied or not (stage.ranks.is_first or stage.ranks.is_last):
        return None
    weight: nn.Parameter = base.embed_tokens.weight  # type: ignore[union-attr, assignment]
    return weight if weight.requires_grad else None
