"""The reward functions of a job: what children load, and what counts of their answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.rewards.routing import SCORERS
from ppojob_trainer.rewards.wire import FunctionSpec

BUILT_IN_SECONDS = 60.0
"""Where rows are routed; the first call of a scorer may import a library in it."""


@dataclass(frozen=True, slots=True)
class Function:
    """A reward function of the job.

    Attributes:
        label: how messages name it.
        name: how its values are named; of several functions of one name, the later are numbered.
        error_score: what stands for a call that fails; None where it fails the job.
        drops: whether a response at which a call fails is left out of training.
    """

    label: str
    name: str
    spec: FunctionSpec
    weight: float
    seconds: float
    error_score: float | None = None
    drops: bool = False


def functions_of(rewards: Sequence[RewardSpec], program_seconds: float) -> list[Function]:
    """What the children load: the job's functions, or every scorer where rows are routed."""
    if not rewards:
        return [
            Function(
                name,
                name,
                FunctionSpec(name, "", b"{}"),
                1.0,
                BUILT_IN_SECONDS + scorer.seconds(program_seconds, {}),
            )
            for name, scorer in SCORERS.items()
        ]
    names = _numbered([reward.function for reward in rewards])
    return [
        Function(
            f"spec.rewards[{position}].function",
            name,
            FunctionSpec(
                reward.function,
                (reward.source.file or "") if reward.source else "",
                msgspec.json.encode(reward.arguments),
                (reward.source.package or "") if reward.source else "",
            ),
            reward.weight,
            reward.time_limit_seconds + _further_seconds(reward, program_seconds),
            reward.error_score,
            reward.on_error == "drop",
        )
        for position, (reward, name) in enumerate(zip(rewards, names, strict=True))
    ]


def _further_seconds(reward: RewardSpec, program_seconds: float) -> float:
    """What programs of a response, or calls of a service, may take beside the function."""
    scorer = None if reward.source else SCORERS.get(reward.function)
    return scorer.seconds(program_seconds, reward.arguments) if scorer else 0.0


def _numbered(names: list[str]) -> list[str]:
    """``score``, ``score.2``, ``score.3``: files may have functions of one name."""
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name}.{counts[name]}")
    return numbered
