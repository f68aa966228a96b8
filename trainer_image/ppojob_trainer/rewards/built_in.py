"""Built-in scorers by name, in the form that users' functions have."""

import inspect
from collections.abc import Callable, Mapping

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.custom import BadFunction
from ppojob_trainer.rewards.routing import SCORERS


def load_scorer(name: str, arguments: Mapping[str, Json]) -> Callable[..., object]:
    """Find a scorer.

    Args:
        name: of the scorer.
        arguments: keyword arguments that every call will have.

    Raises:
        BadFunction: there is no such scorer, or it takes no such arguments.
    """
    scorer = SCORERS.get(name)
    if scorer is None:
        raise BadFunction(
            "RewardFunction",
            name,
            "no built-in scorer has this name",
            f"one of {', '.join(SCORERS)}, or source.path",
        )
    score = scorer.score
    _check(name, inspect.signature(score), arguments)

    def called(
        *,
        data_source: str,
        solution_str: str,
        ground_truth: Json,
        extra_info: Mapping[str, Json],
        **given: Json,
    ) -> object:
        return score(solution_str, ground_truth, **given)

    return called


def _check(name: str, signature: inspect.Signature, arguments: Mapping[str, Json]) -> None:
    parameters = signature.parameters.values()
    settings = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    types = {one.name: one.annotation for one in settings}
    told = signature.replace(parameters=settings, return_annotation=inspect.Signature.empty)
    allowed = f"its arguments are {told}"
    for argument, value in arguments.items():
        if argument not in types:
            got, why = f"{name} with {argument}", "it takes no such argument"
            raise BadFunction("RewardArguments", got, why, allowed)
        try:
            msgspec.convert(value, types[argument])
        except msgspec.ValidationError as error:
            got = f"{name} with {argument} {shown(value)}"
            raise BadFunction("RewardArguments", got, str(error), allowed) from None
