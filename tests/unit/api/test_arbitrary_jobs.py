"""Nothing that JSON can say brings the parser down; what it accepts, it resolves."""

import copy
from typing import Any

from bad_specs import GOOD_JOB
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_api import run_config, shape, validation
from ppojob_api.v1alpha1.job import PPOJob

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["grpo", "rloo", "x.jsonl", "none", "loss", "reward", "vllm", 10**400])
)
NAMES = sorted({path.rpartition(".")[2] for path in shape.all_paths()})
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)
PATHS = [path.split(".") for path in shape.all_paths() if not path.startswith("status")]


def replaced(path: list[str], value: object) -> dict[str, Any]:
    job = copy.deepcopy(GOOD_JOB)
    section: Any = job
    for key in path[:-1]:
        section = section.setdefault(key, {})
        if isinstance(section, list):
            section = section[0] if section else {}
    section[path[-1]] = value
    return job


def check(value: object) -> None:
    judged = validation.validate(value)
    if isinstance(judged, PPOJob):
        run_config.resolve(judged)
        return
    assert judged
    for problem in judged:
        assert str(problem).isprintable()
        assert len(str(problem)) < 2_000


@settings(deadline=None)
@given(JSON)
def test_any_json(value: object) -> None:
    check(value)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PATHS), JSON)
def test_any_json_at_any_field(path: list[str], value: object) -> None:
    check(replaced(path, value))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), SCALARS), max_size=6))
def test_several_wrong_fields(changes: list[tuple[list[str], object]]) -> None:
    job = copy.deepcopy(GOOD_JOB)
    for path, value in changes:
        section: Any = job
        for key in path[:-1]:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        section[path[-1]] = value
    check(job)
