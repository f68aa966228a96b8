"""docs/algorithms.md names everything a PPOJob can ask for, and only fields that exist."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from ppojob_api.v1alpha1.algorithm import ESTIMATORS, AlgorithmSpec
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.algorithms.aggregate import AGGREGATIONS
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.kl import KL
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def choices(model: type[BaseModel], field: str) -> set[str]:
    """The words that a field takes, whether or not it may be null too."""
    annotation = model.model_fields[field].annotation
    members = [get_args(member) for member in get_args(annotation) if get_args(member)]
    return set(members[0] if members else get_args(annotation))


def section_model(annotation: object) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


@pytest.mark.parametrize(
    "name",
    [*ADVANTAGES, *CRITIC_ADVANTAGES, *TOKEN_BASELINES, *POLICY_LOSSES, *AGGREGATIONS, *KL],
)
def test_every_name_has_a_section(name: str):
    assert re.search(rf"^### `{re.escape(name)}`$", TEXT, re.MULTILINE)


def test_the_tables_hold_what_the_manifest_allows():
    policy_loss = section_model(AlgorithmSpec.model_fields["policy_loss"].annotation)
    kl = section_model(AlgorithmSpec.model_fields["kl"].annotation)
    assert choices(policy_loss, "type") == POLICY_LOSSES.keys()
    assert choices(kl, "estimator") == KL.keys()
    assert choices(AlgorithmSpec, "loss_aggregation") == AGGREGATIONS.keys()
    assert choices(AlgorithmSpec, "type") == ESTIMATORS.keys()
    with_critic = {name for name, estimator in ESTIMATORS.items() if estimator.has_critic}
    assert with_critic == CRITIC_ADVANTAGES.keys()
    of_probabilities = {name for name, one in ESTIMATORS.items() if one.has_sum_pi_squared}
    assert of_probabilities == TOKEN_BASELINES.keys()
    assert ESTIMATORS.keys() - with_critic - of_probabilities == ADVANTAGES.keys()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"spec\.algorithm\.([A-Za-z.]+\b)", TEXT))))
def test_every_field_exists(path: str):
    model: type[BaseModel] | None = AlgorithmSpec
    for name in path.split("."):
        assert model is not None
        fields = {field.alias or key: field for key, field in model.model_fields.items()}
        assert name in fields, f"spec.algorithm.{path}"
        model = section_model(fields[name].annotation)
