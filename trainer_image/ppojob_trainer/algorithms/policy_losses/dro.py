"""DRO: a quadratic penalty on the log-ratio where PPO has a clip."""

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def dro(inputs: LossInputs, *, beta: float) -> LossOutput:
    """The policy gradient with a quadratic pull to the old policy.

    Direct Reward Optimisation (arXiv:2405.19107), its policy loss, at each token and with the
    advantage for the reward less the value: `L = -(A log π - beta/2 (log ρ)²)`. Its gradient
    vanishes where `log ρ = A / beta`, for rows of any age.

    Numbers and gradients are those of verl's `dro`.
    """
    log_ratio = inputs.log_ratio()
    gain = inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    loss = 0.5 * beta * log_ratio.square() - gain
    return LossOutput(loss, {"actor/ppo_kl": -bounded(log_ratio).detach()})
