"""DRO: a quadratic penalty on the log-ratio instead of a clip."""

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def dro(inputs: LossInputs, *, beta: float) -> LossOutput:
    """The policy gradient with a quadratic penalty on the distance to the old policy.

    Direct Reward Optimisation (arXiv:2405.19107), its policy loss, per token with the advantage: `L
    = -(A log π - beta/2 (log ρ)²)`. Numbers and gradients are those of verl's `dro`.
    """
    log_ratio = inputs.log_ratio()
    gain = inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    loss = 0.5 * beta * log_ratio.square() - gain
    return LossOutput(loss, {"actor/ppo_kl": -bounded(log_ratio).detach()})
