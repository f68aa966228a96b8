"""verl's trainers, by trainers.yaml: the modules that scripts call, and their own defaults."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

from pydantic import JsonValue
from ruamel.yaml import YAML


@dataclass(frozen=True, slots=True, eq=False)
class Trainer:
    """A main module, as in the table."""

    called: str = "(?!)"
    defaults: Mapping[str, JsonValue] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


_TABLE: Final[dict[str, dict[str, Any]]] = YAML(typ="safe", pure=True).load(
    resources.files("ppojob_cli.verl").joinpath("trainers.yaml").read_text(encoding="utf-8")
)
ENGINES: Final = _TABLE["engines"]
_TRAINERS: Final = {name: Trainer(**row) for name, row in _TABLE["trainers"].items()}
MAIN_PPO: Final = _TRAINERS["main_ppo"]
MAIN_PPO_V0: Final = _TRAINERS["main_ppo_v0"]
DAPO: Final = _TRAINERS["dapo"]
ENTROPY: Final = _TRAINERS["entropy"]
FULLY_ASYNC: Final = _TRAINERS["fully_async"]
ONE_STEP_OFF: Final = _TRAINERS["one_step_off"]
PARTIAL: Final = _TRAINERS["partial"]
GVPO: Final = _TRAINERS["gvpo"]
FLOWRL: Final = _TRAINERS["flowrl"]
PRIME: Final = _TRAINERS["prime"]
SFT: Final = _TRAINERS["sft"]
FSDP_SFT: Final = _TRAINERS["fsdp_sft"]
OF_SFT: Final = (SFT, FSDP_SFT)
GENERATION: Final = _TRAINERS["generation"]
TINY_ZERO: Final = _TRAINERS["tiny_zero"]
SEARCH_R1: Final = _TRAINERS["search_r1"]
SEARCH_R1_FORMAT: Final = _TRAINERS["search_r1_format"]
OF_SEARCH_R1: Final = (SEARCH_R1, SEARCH_R1_FORMAT)
FORKS: Final = (TINY_ZERO, *OF_SEARCH_R1)
_ONLY_SEARCH_R1: Final = frozenset({"max_turns", "do_search", "retriever.url", "retriever.topk"})
_PARTIAL_PRETRAIN: Final = "model.partial_pretrain"
_ONLY_SFT: Final = frozenset({_PARTIAL_PRETRAIN, "data.max_length", "data.messages_key"})
_CHOICES: Final = frozenset({"model_engine", "optim", "actor"})  # Hydra's groups with optimizers


def engine_of(given: Mapping[str, JsonValue]) -> str:
    """Return the training engine of the settings; FSDP by default."""
    chosen = [
        value.removesuffix("_actor")
        for key, value in given.items()
        if key.partition("@")[0] in _CHOICES and isinstance(value, str)
    ]
    if not chosen and (strategy := str(given.get("actor_rollout_ref.actor.strategy"))) in ENGINES:
        return strategy
    return chosen[-1] if chosen else "fsdp"


def of_module(module: str) -> Trainer | None:
    """Return the trainer of a module, if it is supported."""
    patterns = ((rf"(.*[./])?({one.called})(\.py)?", one) for one in _TRAINERS.values())
    return next((one for pattern, one in patterns if re.fullmatch(pattern, module)), None)


def of_keys(keys: Collection[str], called: Trainer | None = None) -> Trainer:
    """Return the trainer of settings, from a script or from their keys."""
    if called in (None, MAIN_PPO) and not _ONLY_SEARCH_R1.isdisjoint(keys):
        return SEARCH_R1
    if called is not None:
        return called
    sections = {key.partition(".")[0] for key in keys if "." in key}
    has_other = not sections.isdisjoint({"actor_rollout_ref", "algorithm"})
    if not has_other and ("optim" in sections or not _ONLY_SFT.isdisjoint(keys)):
        return FSDP_SFT if _PARTIAL_PRETRAIN in keys else SFT
    return FULLY_ASYNC if "async_training" in sections else MAIN_PPO
