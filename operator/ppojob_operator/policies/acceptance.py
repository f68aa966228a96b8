"""Why a spec is not accepted: it is wrong, or newer than this operator. Pure."""

import dataclasses

from ppojob_api.problem import Problem, ReasonCode
from ppojob_operator.conditions import ObservedCondition, inert

INVALID = "InvalidSpec"


def acceptance(problems: tuple[Problem, ...]) -> ObservedCondition:
    """The condition Accepted of a spec."""
    return refusal(problems) if problems else ObservedCondition("Accepted", True, "Valid")


def refusal(problems: tuple[Problem, ...]) -> ObservedCondition:
    """The condition Accepted of a spec with problems.

    The API server drops fields that its schema does not have, and writes defaults of those that it
    has. So one that is not known here is of a newer resource, as between the two halves of an
    upgrade, and so may be whatever else seems wrong: another operator will judge.
    """
    newer = tuple(
        dataclasses.replace(
            one, why="it is newer than this operator", allowed="wait, or upgrade the operator"
        )
        for one in problems
        if one.reason_code is ReasonCode.UNKNOWN_FIELD
    )
    message = inert("; ".join(str(one) for one in newer or problems))
    if newer:
        return ObservedCondition("Accepted", None, "NewerSpec", message)
    return ObservedCondition("Accepted", False, INVALID, message)
