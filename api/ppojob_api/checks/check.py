"""What a check is: a function over a job, and the fields that it reads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob

# Roles whose ranks hold shards of a model.
MODEL_ROLES = ("actorRollout", "reference", "critic", "rewardModel")
MODEL_ROLE_PATHS = tuple(f"spec.roles.{role}" for role in MODEL_ROLES)


@dataclass(frozen=True, slots=True)
class Check:
    """One rule.

    Attributes:
        find: Gives the problems of a job in the order of its fields.
        reads: Paths that `find` looks at; where one of them is wrong in itself, the rule has
            nothing to say.
    """

    find: Callable[[PPOJob], Iterator[Problem]]
    reads: tuple[str, ...]


def no_effect(where: str, value: object, why: str, allowed: str) -> Problem:
    """A setting that the rest of the spec leaves without effect."""
    return Problem(where, shown(value), f"it has no effect {why}", allowed, ReasonCode.NO_EFFECT)


def conflict(where: str, value: object, why: str, allowed: str) -> Problem:
    """A value that is right alone and wrong beside another."""
    return Problem(where, shown(value), why, allowed, ReasonCode.CONFLICT)


def not_yet(where: str, value: object, what: str, allowed: str) -> Problem:
    """Something the resource has a place for and this version cannot do."""
    why = f"{what}: not in this version"
    return Problem(where, shown(value), why, allowed, ReasonCode.NOT_IN_THIS_VERSION)


def out_of_range(where: str, value: object, why: str, allowed: str) -> Problem:
    """A number that another number of the spec bounds."""
    return Problem(where, shown(value), why, allowed, ReasonCode.OUT_OF_RANGE)


def bad_form(where: str, value: object, why: str, allowed: str) -> Problem:
    """Text that does not have the form it must have."""
    return Problem(where, shown(value), why, allowed, ReasonCode.BAD_FORM)
