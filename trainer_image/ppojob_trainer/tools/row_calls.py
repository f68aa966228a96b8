"""Signatures of user simulators: read where their code is loaded, and compared with rows.

So a row without an argument is found before the job starts, in a process that never runs the code.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

from ppojob_trainer.json_value import Json
from ppojob_trainer.tools.loop import without_name
from ppojob_trainer.tools.wire import RowCall

_METHODS = {"start_interaction": 2, "generate_response": 3}
"""Methods of verl's form that get the row's arguments, with the number of those before."""
_STARS = {int(inspect.Parameter.VAR_POSITIONAL): "*", int(inspect.Parameter.VAR_KEYWORD): "**"}
RowCalls = Mapping[str, Sequence[RowCall]]
"""Calls of user simulators with code, by name."""


def row_calls(found: Callable[..., object]) -> list[RowCall]:
    """Return the calls of a function or a class in verl's form, as far as signatures tell them.

    A decorated function may take other arguments than the one behind it, which is not looked at.
    """
    is_class = isinstance(found, type)
    calls = [
        (getattr(found, name), given - _lacks_self(found, name))
        for name, given in _METHODS.items()
        if is_class
    ]
    return [
        RowCall(
            getattr(function, "__name__", "the function"),
            given,
            is_class,
            [(one.name, int(one.kind), one.default is not one.empty) for one in parameters],
        )
        for function, given in calls or [(found, 1)]
        if (parameters := _parameters(function)) is not None
    ]


def call_problem(calls: Sequence[RowCall], arguments: Mapping[str, Json]) -> str | None:
    """Return why the calls cannot take the arguments of a row."""
    for call in calls:
        given = arguments if call.takes_name else without_name(arguments)
        try:
            _signature(call).bind(*[None] * call.given, **given)
        except TypeError as error:
            names = ", ".join(_STARS.get(kind, "") + name for name, kind, _ in call.parameters)
            return f"{call.function}({names}) cannot be called with it: {error}"
    return None


def _lacks_self(found: object, name: str) -> bool:
    return isinstance(inspect.getattr_static(found, name), staticmethod | classmethod)


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (ValueError, TypeError):  # a builtin without a signature
        return None


def _signature(call: RowCall) -> inspect.Signature:
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect._ParameterKind(kind), default=None if has else empty)
            for name, kind, has in call.parameters
        ]
    )
