"""What `explain` says to do is in a table, for every condition and every class of failures."""

from typing import get_args

from ppojob_api.v1alpha1.status import FailureKind
from ppojob_cli.cluster.remedies import UNKNOWN, remedy, tables
from ppojob_operator.conditions import ConditionType


def test_every_condition_has_a_table() -> None:
    assert set(tables()) == set(get_args(ConditionType)) - {"Complete"} | {"Found", "Ended"}
    assert all(tables().values())


def test_every_class_of_failures_has_a_line() -> None:
    assert set(tables()["Ended"]) == set(get_args(FailureKind))


def test_what_is_said_is_the_last_column() -> None:
    assert remedy("Ended", "disruption") == "another pod is made; not counted"
    assert remedy("Admitted", "FlavorMissing") == remedy("Admitted", "PriorityClassMissing")
    assert remedy("Failed", "NewerSpec").startswith("wait: the resource was upgraded")
    assert remedy("Failed", "OfTomorrow") == UNKNOWN
