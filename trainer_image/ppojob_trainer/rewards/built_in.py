"""Built-in scorers by name, with the signature of custom functions."""

import inspect
from collections.abc import Callable, Mapping

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Row
from ppojob_trainer.rewards.routing import SCORERS
from ppojob_trainer.sandbox.executor import Runner, SandboxRefused

_LONG = 80
"""Longer default values are truncated in messages."""


def load_scorer(
    name: str,
    arguments: Mapping[str, Json],
    sandbox: Callable[[], Runner],
    *,
    late: bool = False,
) -> Callable[..., object]:
    """Load a scorer as a function with the signature of custom ones.

    With `late`, libraries are imported and the sandbox is opened at the first call: jobs that are
    routed by data source call few scorers, without arguments. Raises ConfigError if there is no
    such scorer, it has no such arguments, or the sandbox isolates less than required; the place is
    relative to the reward (``arguments``).
    """
    scorer = SCORERS.get(name)
    if scorer is None:
        raise ConfigError(
            f"function: got {name}: no built-in scorer has this name; "
            f"one of {', '.join(SCORERS)}, or source.path"
        )
    score = scorer.score
    if not late:
        _check(name, inspect.signature(score), arguments)
        if (wrong := scorer.arguments_problem(arguments)) is not None:
            got = f"{name} with {wrong.got}"
            raise ConfigError(f"arguments: got {got}: {wrong.why}; {wrong.allowed}")
        scorer.prepare()
        try:
            if scorer.runs_code:
                sandbox()
        except SandboxRefused as refused:
            raise ConfigError(f"function: got {name} with {refused}") from None

    def called(
        *,
        data_source: str,
        solution_str: str,
        ground_truth: Json,
        extra_info: Mapping[str, Json],
        **given: Json,
    ) -> object:
        row = (Row(data_source, extra_info),) if scorer.takes_row else ()
        opened = (sandbox(),) if scorer.runs_code else ()
        return score(solution_str, ground_truth, *row, *opened, **given)

    def called_of_prompt(
        *,
        data_source: str,
        solution_strs: list[str],
        ground_truth: Json,
        extra_infos: list[Mapping[str, Json]],
        **given: Json,
    ) -> object:
        return score(solution_strs, ground_truth, **given)

    return called_of_prompt if scorer.takes_group else called


def _check(name: str, signature: inspect.Signature, arguments: Mapping[str, Json]) -> None:
    parameters = signature.parameters.values()
    settings = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    types = {one.name: one.annotation for one in settings}
    allowed = f"its arguments are {_shortened(settings)}"
    for one in settings:
        if one.default is one.empty and one.name not in arguments:
            got = f"{name} without {one.name}"
            raise ConfigError(f"arguments: got {got}: this argument is required; {allowed}")
    for argument, value in arguments.items():
        if argument not in types:
            got = f"{name} with {argument}"
            raise ConfigError(f"arguments: got {got}: it has no such argument; {allowed}")
        try:
            msgspec.convert(value, types[argument])
        except msgspec.ValidationError as error:
            got = f"{name} with {argument} {shown(value)}"
            raise ConfigError(f"arguments: got {got}: {error}; {allowed}") from None


def _shortened(settings: list[inspect.Parameter]) -> inspect.Signature:
    """Return the arguments with their types; long default values are truncated."""
    return inspect.Signature(
        [
            one.replace(default=shown(one.default)) if len(str(one.default)) > _LONG else one
            for one in settings
        ]
    )
