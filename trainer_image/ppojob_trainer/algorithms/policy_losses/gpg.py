"""GPG: the plain policy gradient, without a ratio."""

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def gpg(inputs: LossInputs) -> LossOutput:
    """Minus the advantage times the log-probability.

    Group Policy Gradient (arXiv:2504.02546), its objective: `L = -A log π`. Nothing holds the
    policy to the one that sampled, so it is for a single update a step.

    Numbers and gradients are those of verl's `gpg`, which has no metric; here `ppo_kl` is one.
    """
    loss = -inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    return LossOutput(loss, {"actor/ppo_kl": -bounded(inputs.log_ratio()).detach()})
