"""Parameters of tests in two tiers: `make test` tries some, `make test-long` the others."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def first_in_test(values: Iterable[Any] | Mapping[str, Any], *chosen: object) -> list[ParameterSet]:
    """Mark all but the chosen values as `long`; by default all but the first.

    Args:
        values: values, which are tuples for several names; or values of one name by their ids.
        chosen: values of `make test`, or ids.
    """
    if isinstance(values, Mapping):
        found = [(name, pytest.param(value, id=name)) for name, value in values.items()]
    else:
        found = [
            (one, pytest.param(*(one if isinstance(one, tuple) else (one,)))) for one in values
        ]
    chosen = chosen or (found[0][0],)
    return [
        one if name in chosen else pytest.param(*one.values, id=one.id, marks=pytest.mark.long)
        for name, one in found
    ]
