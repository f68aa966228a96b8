"""docs/from-verl.md speaks of fields that exist, and forgets none of the spec that verl has."""

import re
from pathlib import Path

import pytest

from ppojob_api import shape

DOCUMENT = Path(__file__).parents[3] / "docs" / "from-verl.md"
FIELDS = {path for path in shape.all_paths() if not path.startswith("status")}
SECTIONS = {
    "data",
    "model",
    "algorithm",
    "optimizer",
    "training",
    "rollout",
    "critic",
    "rewards",
    "rewardModel",
    "roles",
}

# What verl has no key for.
OURS = {
    "spec.rewards.source.configMap",
    "spec.rewards.timeLimitSeconds",
    "spec.rewards.weight",
    "spec.optimizer.epsilon",
    "spec.critic.optimizer.epsilon",
    "spec.rollout.stopTokenIds",
    "spec.training.sharePrompts",
    "spec.training.skipZeroGradientGroups",
    "spec.roles.rollout",
    "spec.roles.actorRollout.ranksPerReplica",
    "spec.roles.actorRollout.threadsPerRank",
    "spec.roles.actorRollout.cpu",
    "spec.roles.actorRollout.parallelism.tensor",
    "spec.roles.reward.replicas",
}


def rows() -> list[tuple[str, str, str]]:
    found = []
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and not cells[0].startswith(("verl", "---")):
            found.append((cells[0], cells[1], cells[2].strip("| ") if len(cells) > 2 else ""))
    return found


ROWS = rows()


def named(text: str) -> list[str]:
    names = re.findall(r"`((?:spec|metadata)\.[\w.\[\]]*)`", text)
    return [name.replace("[]", "") for name in names]


def test_the_table_is_read() -> None:
    assert len(ROWS) > 120


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_row(row: tuple[str, str, str]) -> None:
    verl, ours, remark = row
    assert verl
    fields = named(ours)
    assert fields or ours in {"not yet", "not needed"}
    for field in fields + named(remark):
        assert field in FIELDS


def test_every_field_that_verl_knows_is_in_the_table() -> None:
    mentioned = {field for _, ours, _ in ROWS for field in named(ours)} | OURS
    for field in FIELDS:
        top = field.split(".")[1] if field.startswith("spec.") else ""
        inner = any(other.startswith(f"{field}.") for other in FIELDS)
        below = any(field.startswith(f"{other}.") for other in mentioned)
        if top in SECTIONS and not inner and not below:
            assert field in mentioned


def test_every_field_said_to_be_ours_exists() -> None:
    assert FIELDS >= OURS


def test_fields_named_in_the_prose_exist() -> None:
    for field in named(DOCUMENT.read_text()):
        assert field in FIELDS
