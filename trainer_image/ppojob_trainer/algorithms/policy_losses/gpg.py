"""GPG: the plain policy gradient, without a ratio."""

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def gpg(inputs: LossInputs) -> LossOutput:
    """The policy gradient `L = -A log π`.

    Group Policy Gradient (arXiv:2504.02546). Without a ratio, it is for one update per step.
    Numbers and gradients are those of verl's `gpg`, which has no metric.
    """
    loss = -inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    return LossOutput(loss, {"actor/ppo_kl": -bounded(inputs.log_ratio()).detach()})
