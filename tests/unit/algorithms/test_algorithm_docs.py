import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ppojob_api.v1alpha1.algorithm import FULL_KL, AlgorithmSpec
from ppojob_api.v1alpha1.estimators import ESTIMATORS, GIVEN
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer import algorithms
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.algorithms.aggregate import AGGREGATIONS
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.implicit_rewards import PROCESS_ADVANTAGES
from ppojob_trainer.algorithms.kl import KL
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES
from ppojob_trainer.algorithms.turn_advantages import TURN_ADVANTAGES

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
CODE = "\n".join(
    path.read_text(encoding="utf-8") for path in Path(algorithms.__file__).parent.rglob("*.py")
)


def choices(model: type[BaseModel], field: str) -> set[str]:
    annotation = model.model_fields[field].annotation
    members = [get_args(member) for member in get_args(annotation) if get_args(member)]
    return set(members[0] if members else get_args(annotation))


def section_model(annotation: object) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def test_every_name_has_a_section_with_the_formula_and_the_paper_that_the_code_has():
    sections = re.findall(r"^### `(.+)`$", TEXT, re.MULTILINE)
    of_turns = TURN_ADVANTAGES.keys()
    own = {*ADVANTAGES, *CRITIC_ADVANTAGES, *PROCESS_ADVANTAGES, *of_turns, "distillation"}
    estimators = own | TOKEN_BASELINES.keys()
    assert {*estimators, *POLICY_LOSSES, *AGGREGATIONS, *KL, FULL_KL} <= {*sections}
    for section in re.split(r"^##+ ", TEXT, flags=re.MULTILINE):
        name = section.partition("\n")[0].strip("`")
        if name in {*own, *POLICY_LOSSES}:
            assert re.search(r"^    \S", section, re.MULTILINE), name
            assert "](http" in section, name
            papers = re.findall(r"arXiv:[0-9.]+[0-9]", section)
            assert [paper for paper in papers if paper not in CODE] == [], name


def test_the_tables_hold_what_the_manifest_allows():
    policy_loss = section_model(AlgorithmSpec.model_fields["policy_loss"].annotation)
    kl = section_model(AlgorithmSpec.model_fields["kl"].annotation)
    assert choices(policy_loss, "type") == POLICY_LOSSES.keys() | {"custom"}
    assert choices(kl, "estimator") == {*KL, FULL_KL}
    assert choices(AlgorithmSpec, "loss_aggregation") == set(AGGREGATIONS)
    assert choices(AlgorithmSpec, "type") == ESTIMATORS.keys() | GIVEN.keys()
    with_critic = {name for name, estimator in ESTIMATORS.items() if estimator.has_critic}
    assert with_critic == CRITIC_ADVANTAGES.keys() | PROCESS_ADVANTAGES.keys()
    of_probabilities = {name for name, one in ESTIMATORS.items() if one.has_sum_pi_squared}
    assert of_probabilities == TOKEN_BASELINES.keys()
    of_turns = {name for name, one in ESTIMATORS.items() if one.compares_turns}
    assert of_turns == TURN_ADVANTAGES.keys()
    of_teacher = {name for name, one in ESTIMATORS.items() if one.has_teacher}
    in_table = ESTIMATORS.keys() - with_critic - of_probabilities - of_turns - of_teacher
    assert in_table == ADVANTAGES.keys() | {"custom"}


def field(path: str) -> FieldInfo | None:
    model: type[BaseModel] | None = PPOJobSpec
    found: FieldInfo | None = None
    for name in path.removeprefix("spec.").split("."):
        fields = {one.alias or key: one for key, one in model.model_fields.items()} if model else {}
        found = fields.get(name)
        model = section_model(found.annotation) if found else None
    return found


def settings(model: type[BaseModel], path: str) -> Iterator[str]:
    """Paths of all fields that have no fields of their own."""
    for key, one in model.model_fields.items():
        here, section = f"{path}.{one.alias or key}", section_model(one.annotation)
        yield from settings(section, here) if section else [here]


def table(head: str) -> list[list[list[str]]]:
    rows = rf"^\| {re.escape(head)} \|.*\n\| ---.*\n((?:\|.*\n)+)"
    (found,) = re.findall(rows, TEXT, re.MULTILINE)
    cells = (line.strip("|").split("|") for line in found.splitlines())
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in cells]


def test_every_field_exists():
    named = set(re.findall(r"`(spec(?:\.[A-Za-z]+)+)`", TEXT))
    assert [path for path in named if field(path) is None] == []


def test_every_setting_is_told():
    for path in settings(AlgorithmSpec, "spec.algorithm"):
        section, _, name = path.rpartition(".")
        with_its_section = rf"`{section}`.*`[^`]*\b{name}\b[^`]*`"
        assert re.search(rf"`{path}\b|{with_its_section}", TEXT), path


def test_defaults_are_those_of_the_fields():
    for path, said in set(re.findall(r"`(spec(?:\.[A-Za-z]+)+)` \(([^)]*)\)", TEXT)):
        default = field(path).default
        if default is PydanticUndefined or isinstance(default, tuple):
            continue
        words = re.findall(r"[a-z_]\w+|[0-9.]+[0-9]|[0-9]", said)
        if default is None:
            assert words[0] == "absent", path
        elif isinstance(default, (bool, str)):
            assert words[0] == str(default).lower(), path
        else:
            assert next(float(word) for word in words if word[0].isdigit()) == default, path


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("type | compares with", ESTIMATORS.keys() - {"custom"}),
        ("type | the idea", POLICY_LOSSES),
        ("estimator | value", [*KL, FULL_KL]),
    ],
)
def test_a_table_has_each_name_once(head: str, names: Iterable[str]):
    assert sorted(name for first, *_ in table(head) for name in first) == sorted(names)


def test_metrics_of_a_policy_loss_are_those_that_it_has():
    for names, *_, metrics in table("type | the idea"):
        known = {metric for name in names for metric in POLICY_LOSSES[name].metrics}
        told = {f"actor/{one}" for one in metrics if one.startswith(("pg_", "log_z"))}
        assert told == known - {"actor/ppo_kl"}
