"""What a gang asks for together, and what the cluster has for gangs."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_operator.build.gang import total_requests
from ppojob_operator.cache import Cache, GangCache
from ppojob_operator.state import GangFacts, GangKind, Placement, PodSet


def pods_of(count: int, **requests: str) -> PodSet:
    container = {"name": "trainer", "resources": {"requests": requests}}
    return PodSet("reward", count, {"spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("sets", "total"),
    [
        ((pods_of(3, cpu="2"), pods_of(1, cpu="100m")), {"cpu": "6100m"}),
        ((pods_of(2, cpu="500m"),), {"cpu": "1"}),
        ((pods_of(2, memory="1536Mi"), pods_of(1, memory="1G")), {"memory": "4221225472"}),
        ((pods_of(8, gpu="2"), pods_of(1, cpu="1")), {"cpu": "1", "gpu": "16"}),
        ((), {}),
    ],
)
def test_what_all_pods_ask_for(sets: tuple[PodSet, ...], total: dict[str, str]) -> None:
    assert total_requests(sets) == total


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 10**6)), min_size=1, max_size=5))
def test_no_thousandth_is_lost(asked: list[tuple[int, int]]) -> None:
    sets = tuple(pods_of(count, cpu=f"{milli}m") for count, milli in asked)
    text = total_requests(sets)["cpu"]
    total = Fraction(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    assert total == Fraction(sum(count * milli for count, milli in asked), 1000)


def test_jobs_are_woken_by_what_is_new_alone() -> None:
    woken: list[GangFacts] = []
    cache = GangCache(lambda: woken.append(cache.facts("lab")))
    flavor = {"metadata": {"uid": "1", "name": "h200"}, "spec": {"nodeLabels": {"gpu": "h200"}}}
    urgent = {"metadata": {"uid": "2", "name": "urgent"}, "value": 7}
    for _ in range(2):
        cache.see_flavor(flavor)
        cache.see_priority(urgent)
        cache.see_served("PodGroup", "lab", True)
    assert len(woken) == 3
    assert cache.facts("lab") == GangFacts(
        frozenset({"PodGroup"}), {"h200": Placement({"gpu": "h200"})}, {"urgent": 7}
    )
    cache.lose("1")
    cache.lose("2")
    cache.see_served("PodGroup", "lab", False)
    assert cache.facts("lab") == GangFacts()
    assert len(woken) == 6


def test_what_may_be_read_in_one_namespace_is_no_matter_of_another() -> None:
    cache = Cache(lambda _: None)

    def served(namespace: str) -> frozenset[GangKind]:
        return cache.observed((namespace, "sum"), "uid").gangs.served

    for namespace in ("lab", "other"):
        cache.gangs.see_served("PodGroup", namespace, True)
    cache.gangs.see_served("PodGroup", "other", False)
    assert served("lab") == {"PodGroup"}
    assert not served("other")
    cache.gangs.see_served("Workload", "", True)
    assert served("other") == {"Workload"}
