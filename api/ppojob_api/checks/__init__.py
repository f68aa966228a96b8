"""What CEL cannot say of a job, one small function a rule."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob


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
