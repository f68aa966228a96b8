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


def put(section: Any, path: list[str], value: object) -> None:
    """Write a value below a section; what lies above it becomes an object, but for lists."""
    for key in path[:-1]:
        if not isinstance(section.get(key), dict | list):
            section[key] = {}
        section = section[key]
        if isinstance(section, list):
            section = section[0] if section and isinstance(section[0], dict) else {}
    section[path[-1]] = value


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
@given(st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=4))
def test_any_json_at_any_fields(changes: list[tuple[list[str], object]]) -> None:
    job = copy.deepcopy(GOOD_JOB)
    for path, value in changes:
        put(job, path, value)
    check(job)
