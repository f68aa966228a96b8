import re
from pathlib import Path

import pytest
from bad_specs import GOOD_JOB
from ruamel.yaml import YAML

from ppojob_api import validation
from ppojob_api.v1alpha1.estimators import ESTIMATORS
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.job_file import validate_file

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("**/*.yaml") if "kind: PPOJob" in path.read_text()
)
assert EXAMPLES
PAGE = (ROOT / "docs" / "recipes.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
SHOWN = {name: re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for name, text in SECTIONS.items()}
RECIPES = {name: blocks[0] for name, blocks in SHOWN.items() if blocks}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid(path: Path) -> None:
    judged = validate_file(str(path))
    assert isinstance(judged, PPOJob), [str(problem) for problem in judged]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_valid(name: str) -> None:
    """And with what its section shows further, one after the other."""
    spec = dict(GOOD_JOB["spec"])
    for block in SHOWN[name]:
        spec |= YAML(typ="safe").load(block)
        judged = validation.validate({**GOOD_JOB, "spec": spec})
        assert isinstance(judged, PPOJob), judged


def test_every_estimator_but_the_less_usual_has_one() -> None:
    used = {YAML(typ="safe").load(recipe)["algorithm"]["type"] for recipe in RECIPES.values()}
    unused = {"opo", "reinforce", "reinforce_plus_plus_baseline", "tir_optimal_token_baseline"}
    unused |= {"custom"}  # of which docs/algorithms.md has a recipe
    assert ESTIMATORS.keys() - used == unused


def test_no_target_of_the_kl_is_that_of_a_whole_response() -> None:
    """It is compared with a mean over tokens: a coefficient that aims at nats falls to nothing."""
    algorithms = [YAML(typ="safe").load(recipe)["algorithm"] for recipe in RECIPES.values()]
    controlled = [one["kl"] for one in algorithms if "controller" in one.get("kl", {})]
    assert controlled
    assert all(kl["target"] <= 1.0 for kl in controlled)
