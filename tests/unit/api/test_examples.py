"""Every example in the tree is a good job."""

from pathlib import Path

import pytest

from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.validate import validate_file

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[3] / "examples").glob("**/*.yaml")
    if "kind: PPOJob" in path.read_text()
)
assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    judged = validate_file(str(path))
    assert isinstance(judged, PPOJob), [str(problem) for problem in judged]
