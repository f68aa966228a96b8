"""verl's trainers: the modules that scripts call, and their own defaults."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

_PODS: Final[Mapping[str, JsonValue]] = {
    "actor_rollout_ref.rollout.nnodes": 1,
    "algorithm.rollout_correction.bypass_mode": True,
}
"""Of the two that draw while they train."""
_RAY_PPO: Final[Mapping[str, JsonValue]] = {"trainer.use_v1": False}
"""Of those that are verl's RayPPOTrainer, or fetch their prompts as that does."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """A main module."""

    modules: str  # its names in scripts; empty if they are those of main_ppo
    # Defaults that differ from main_ppo's; `${KEY}` is the value of another key.
    defaults: Mapping[str, JsonValue] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # its own names for keys of main_ppo
    unread: frozenset[str] = frozenset()  # keys that it ignores, unlike main_ppo


MAIN_PPO: Final = Trainer(r"(?:.*[./])?trainer[./]main_ppo(?:_sync)?(?:\.py)?|main_ppo(?:\.py)?")
MAIN_PPO_V0: Final = Trainer(r"(?:.*[./])?trainer[./]main_ppo_v0(?:\.py)?", _RAY_PPO)
_DAPO: Final[Mapping[str, JsonValue]] = {"reward.reward_manager.name": "dapo"}
DAPO: Final = Trainer(r"(?:.*[./])?main_dapo(?:\.py)?", _DAPO)
ENTROPY: Final = Trainer(r"(?:.*[./])?main_entropy(?:\.py)?", _DAPO)
"""Of the recipe of Clip-Cov and KL-Cov: an older DAPO's, with a grader of its own."""
ONE_STEP_OFF: Final = Trainer(
    r"(?:.*[./])?one_step_off_policy[./]main_ppo(?:\.py)?", {**_PODS, **_RAY_PPO}
)
PARTIAL: Final = Trainer(r"(?:.*[./])?partial_rollout[./]main_ppo(?:\.py)?", _RAY_PPO)
"""Of the recipe whose long rows go on in the next step; it generates where it trains."""
FULLY_ASYNC: Final = Trainer(r"(?:.*[./])?fully_async_main(?:\.py)?", _PODS)
GVPO: Final = Trainer(
    r"(?:.*[./])?gvpo_main_ppo(?:\.py)?",
    {
        **_RAY_PPO,
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gvpo",
        "trainer.project_name": "gvpo",
    },
)
FLOWRL: Final = Trainer(
    r"(?:.*[./])?main_flowrl(?:\.py)?",
    {
        **_DAPO,
        **_RAY_PPO,
        "actor_rollout_ref.actor.policy_loss.loss_mode": "flowrl",
        "trainer.project_name": "verl-flowrl",
    },
    unread=frozenset(
        f"actor_rollout_ref.actor.{name}"
        for name in ("entropy_coeff", "use_kl_loss", "kl_loss_coef", "kl_loss_type")
    ),
)
"""Of the recipe, whose loss is alone, and has the reference by itself."""
SPO: Final = Trainer(r"(?:.*[./])?spo_main_ppo(?:\.py)?")
_OF_MODEL: Final = ("lr", "weight_decay", "lr_warmup_steps", "lr_warmup_steps_ratio")
PRIME: Final = Trainer(
    r"(?:.*[./])?main_prime(?:\.py)?",
    {
        "actor_rollout_ref.actor.entropy_coeff": 0.001,
        "actor_rollout_ref.rollout.n": 4,
        "algorithm.adv_estimator": "rloo",
        "algorithm.kl_ctrl.kl_coef": 0.0,
        "critic.enable": True,
        "critic.fsdp.optimizer_offload": "${actor_rollout_ref.actor.fsdp_config.optimizer_offload}",
        "critic.fsdp.param_offload": "${actor_rollout_ref.actor.fsdp_config.param_offload}",
        "critic.model.path": "~/models/deepseek-llm-7b-chat",
        "critic.optim.clip_grad": 10.0,
        "critic.optim.lr": 1e-6,
        "critic.optim.weight_decay": 0.0,
        "data.filter_accuracy": True,
        "data.filter_truncate": True,
        "data.oversample_factor": 4.0,
        "data.truncation": "right",
        "reward.reward_manager.name": "prime",
        "reward_model.mini_batch_size": "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        "trainer.experiment_name": "examples",
        "trainer.project_name": "prime",
        "trainer.val_before_train": False,
    },
    {
        "reward_model.enable": "critic.enable",
        "reward_model.model.path": "critic.model.path",
        "reward_model.model.optim.grad_clip": "critic.optim.clip_grad",
        **{f"reward_model.model.optim.{name}": f"critic.optim.{name}" for name in _OF_MODEL},
        **{
            f"reward_model.model.fsdp_config.{name}": f"critic.fsdp.{name}"
            for name in ("param_offload", "optimizer_offload")
        },
    },
)
"""Of the recipe, whose process reward model is the critic here."""
SFT: Final = Trainer(
    r"(?:.*[./])?(?:fsdp_)?sft_trainer(?:_ray)?(?:\.py)?",
    {
        "actor_rollout_ref.model.lora.merge": True,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 8192,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2**30,  # all rows of a step
        "data.train_batch_size": 256,
        "data.prompt_key": "messages",
        "data.max_prompt_length": 1024,
        "data.max_response_length": 1024,
        "data.train_files": "~/data/gsm8k/train.parquet",
        "data.val_files": [],
        "trainer.experiment_name": "test",
        "trainer.n_gpus_per_node": 1,
        "trainer.total_epochs": 4,
        "trainer.val_before_train": False,
    },
)

_ROLLOUT: Final = "actor_rollout_ref.rollout"
GENERATION: Final = Trainer(
    r"(?:.*[./])?main_generation_server(?:\.py)?",
    {
        # Nothing is trained, so any will do.
        "algorithm.adv_estimator": "reinforce_plus_plus",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2**30,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        f"{_ROLLOUT}.val_kwargs.temperature": 1.0,
        "trainer.experiment_name": "generation",
        "trainer.logger": ["console"],
    },
    {
        "data.train_files": "data.val_files",
        f"{_ROLLOUT}.prompt_length": "data.max_prompt_length",
        f"{_ROLLOUT}.response_length": "data.max_response_length",
        **{
            f"{_ROLLOUT}.{name}": f"{_ROLLOUT}.val_kwargs.{name}"
            for name in ("temperature", "top_p", "top_k", "n")
        },
    },
)

_OF_2025: Final[Mapping[str, JsonValue]] = {
    "actor_rollout_ref.actor.clip_ratio_c": 0,
    "actor_rollout_ref.actor.entropy_coeff": 0.001,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "algorithm.use_kl_in_reward": True,  # unless the loss has it
}
"""verl of January 2025, which TinyZero and Search-R1 are forks of."""
_SEARCHES: Final = {**_OF_2025, "actor_rollout_ref.rollout.top_p": 0.95}
TINY_ZERO: Final = Trainer("", _OF_2025)
SEARCH_R1: Final = Trainer("", _SEARCHES)
SEARCH_R1_FORMAT: Final = Trainer(r"(?:.*[./])?main_ppo_format(?:\.py)?", _SEARCHES)
OF_SEARCH_R1: Final = (SEARCH_R1, SEARCH_R1_FORMAT)
FORKS: Final = (TINY_ZERO, *OF_SEARCH_R1)
_ONLY_SEARCH_R1: Final = frozenset({"max_turns", "do_search", "retriever.url", "retriever.topk"})

_TRAINERS: Final = (
    MAIN_PPO,
    MAIN_PPO_V0,
    DAPO,
    ENTROPY,
    ONE_STEP_OFF,
    PARTIAL,
    FULLY_ASYNC,
    GVPO,
    FLOWRL,
    SPO,
    PRIME,
    SFT,
    GENERATION,
    SEARCH_R1_FORMAT,
)


_OPTIM: Final = "actor_rollout_ref.actor.optim"
_OPTIMIZERS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "automodel": {
        f"{_OPTIM}.init_lr_ratio": 0.1,
        f"{_OPTIM}.lr": 1e-5,
        f"{_OPTIM}.lr_scheduler_type": "cosine",
        f"{_OPTIM}.min_lr_ratio": 0.01,
    },
    "veomni": {
        f"{_OPTIM}.lr_scheduler_type": "cosine",
        "critic.optim.lr_scheduler_type": "cosine",
    },
}
"""Defaults of the optimizers of engines, where they are not those of FSDP's."""
_CHOICES: Final = frozenset({"model_engine", "optim", "actor"})
"""Groups of Hydra's whose choice brings an optimizer's defaults."""


def engine_of(given: Mapping[str, JsonValue]) -> str:
    """Return the training engine of the settings; FSDP by default."""
    chosen = [
        value.removesuffix("_actor")
        for key, value in given.items()
        if key.partition("@")[0] in _CHOICES and isinstance(value, str)
    ]
    return chosen[-1] if chosen else "fsdp"


def optimizer_defaults(engine: str) -> Mapping[str, JsonValue]:
    """Return the defaults of an engine."""
    return _OPTIMIZERS.get(engine, {})


def of_module(module: str) -> Trainer | None:
    """Return the trainer of a module, if it is supported."""
    return next((one for one in _TRAINERS if re.fullmatch(one.modules, module)), None)


def of_keys(keys: Iterable[str], called: Trainer | None = None) -> Trainer:
    """Return the trainer of settings, from a script or from their keys."""
    if called in (None, MAIN_PPO) and not _ONLY_SEARCH_R1.isdisjoint(keys):
        return SEARCH_R1
    if called is not None:
        return called
    is_async = any(key.startswith("async_training.") for key in keys)
    return FULLY_ASYNC if is_async else MAIN_PPO
