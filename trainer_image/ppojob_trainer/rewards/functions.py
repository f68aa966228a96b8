"""The reward functions of a job: what children load, and what counts of their answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.rewards.routing import SCORERS

BUILT_IN_SECONDS = 60.0
"""Where rows are routed; the first call of a scorer may import a library in it."""


@dataclass(frozen=True, slots=True)
class Function:
    """A reward function of the job.

    Attributes:
        label: how messages name it.
        name: how its values are named; of several functions of one name, the later are numbered.
        spec: as the job has it.
        seconds: limit of a call.
    """

    label: str
    name: str
    spec: RewardSpec
    seconds: float

    @property
    def drops(self) -> bool:
        """Whether a response at which a call fails is left out of training."""
        return self.spec.on_error == "drop"


def functions_of(rewards: Sequence[RewardSpec], program_seconds: float) -> list[Function]:
    """What the children load: the job's functions, or every scorer where rows are routed."""
    routed = [RewardSpec(function=name, time_limit_seconds=BUILT_IN_SECONDS) for name in SCORERS]
    specs = rewards or routed
    names = _numbered([spec.function for spec in specs])
    return [
        Function(
            f"spec.rewards[{position}].function" if rewards else name,
            name,
            spec,
            spec.time_limit_seconds + _further_seconds(spec, program_seconds),
        )
        for position, (spec, name) in enumerate(zip(specs, names, strict=True))
    ]


def _further_seconds(reward: RewardSpec, program_seconds: float) -> float:
    """What programs of a response, or calls of a service, may take beside the function."""
    scorer = None if reward.source else SCORERS.get(reward.function)
    return scorer.seconds(program_seconds, reward.arguments) if scorer else 0.0


def _numbered(names: list[str]) -> list[str]:
    """``score``, ``score.2``, ``score.3``: files may have functions of one name."""
    before = [names[:position].count(name) for position, name in enumerate(names)]
    return [
        f"{name}.{count + 1}" if count else name for name, count in zip(names, before, strict=True)
    ]
