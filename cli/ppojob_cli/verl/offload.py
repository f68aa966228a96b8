"""Conversion of verl's offload and activation checkpointing settings."""

from typing import Final

from ppojob_cli.verl.algorithm import places_of_kl
from ppojob_cli.verl.draft import Draft, Verl
from ppojob_cli.verl.trainers import FLOWRL

_ACTOR: Final = "actor_rollout_ref.actor"
_REFERENCE: Final = "actor_rollout_ref.ref"
_MODEL: Final = "actor_rollout_ref.model"
_OF_MEGATRON: Final = "optim.override_optimizer_config.optimizer_cpu_offload"
_SWITCHES: Final = {
    "weights": ("param_offload", "offload_policy"),
    "optimizer": ("optimizer_offload", "offload_policy"),
}
"""FSDP2's own policy has both there."""


def checkpointing(verl: Verl, job: Draft) -> None:
    """Convert activation checkpointing of FSDP and Megatron."""
    switch = f"{_MODEL}.enable_gradient_checkpointing"
    amount = f"{_ACTOR}.megatron.override_transformer_config.recompute_granularity"
    job.set("spec.training.activationCheckpointing", bool(verl[switch] or verl[amount]), switch)
    if verl[amount] and not verl[switch]:
        job.set("spec.training.activationCheckpointing", True, amount)


def tiles(verl: Verl, job: Draft) -> None:
    """Convert tiled feed-forward blocks; verl's number of tiles does not depend on the tokens."""
    switch, number = (f"{_MODEL}.tiled_mlp.{name}" for name in ("enabled", "num_shards"))
    if verl[switch]:
        most = f"{_ACTOR}.ppo_max_token_len_per_gpu"
        tokens = -(-verl[most] // max(1, verl[number]))
        job.set("spec.training.mlpTileTokens", tokens, switch, number)


def offload(verl: Verl, job: Draft) -> None:
    """Convert offloading of weights, moments and activations."""
    compares = verl.trainer is FLOWRL or any(places_of_kl(verl))
    for role, is_there, trainers, model in (
        ("actorRollout", True, (f"{_ACTOR}.fsdp_config", f"{_ACTOR}.megatron"), _MODEL),
        ("critic", verl.has_critic, ("critic.fsdp", "critic.megatron"), "critic.model"),
        ("reference", compares, (f"{_REFERENCE}.fsdp_config", f"{_REFERENCE}.megatron"), None),
    ):
        if not is_there:
            continue
        switches = {
            what: [f"{trainer}.{name}" for trainer in trainers for name in names]
            for what, names in _SWITCHES.items()
            if what == "weights" or model is not None
        }
        if model is not None:
            switches["activations"] = [f"{model}.enable_activation_offload"]
            section = trainers[0].rpartition(".")[0]
            switches["optimizer"].append(f"{section}.{_OF_MEGATRON}")
        every = [key for keys in switches.values() for key in keys]
        job.keep(*every)
        if not verl[f"{_MODEL}.enable_gradient_checkpointing"]:
            why = "the inputs of layers that are computed again, with enable_gradient_checkpointing"
            for key in filter(lambda key: verl[key] is True, switches.pop("activations", [])):
                job.leave_out(why, key, changes_numbers=False)
        on = {what: [key for key in keys if verl[key] is True] for what, keys in switches.items()}
        chosen = [what for what, keys in on.items() if keys]
        keys = dict.fromkeys(key for keys in on.values() for key in keys)
        if chosen:
            job.set(f"spec.roles.{role}.offload", chosen, *keys)
