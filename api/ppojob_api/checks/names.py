"""Names of reward functions."""

import keyword
from collections.abc import Iterator

from ppojob_api.checks import Check
from ppojob_api.problem import Problem, ReasonCode, repeated, shown
from ppojob_api.v1alpha1.job import PPOJob


def reward_functions(job: PPOJob) -> Iterator[Problem]:
    """A function has a Python name, and is given once."""
    rewards = job.spec.rewards
    for index, reward in enumerate(rewards):
        if not reward.function.isidentifier() or keyword.iskeyword(reward.function):
            where, got = f"spec.rewards[{index}].function", shown(reward.function)
            allowed = "the name of a Python function"
            yield Problem(where, got, "it names no function", allowed, ReasonCode.BAD_FORM)
    keys = [(one.function, one.source and one.source.path) for one in rewards]
    allowed = "each function once, with the sum of the weights"
    yield from repeated("spec.rewards", "function", [key[0] for key in keys], keys, allowed)


NAME_CHECKS = (Check(reward_functions, ("spec.rewards",)),)
