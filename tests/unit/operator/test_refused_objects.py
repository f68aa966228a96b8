"""Objects that the API server does not take: what they hold up, and what they must not."""

import dataclasses
from collections.abc import Callable

import pytest
from operator_bench import KEY, Bench, up
from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, UID, job_manifest, make_job, observed
from operator_plans import READY, all_pods, claim, kinds, look, status_of

from ppojob_operator.cache import Cache
from ppojob_operator.conditions import rfc3339
from ppojob_operator.errors import ClusterError, RefusedError, UnavailableError
from ppojob_operator.reading import JobKey


def refuse(bench: Bench, kind: str, how: Callable[[str], ClusterError] = RefusedError) -> None:
    """Have every write of objects of a kind fail, deletions aside."""

    def fault(_: int) -> ClusterError | None:
        verb, of, name = bench.cluster.writes[-1]
        hits = of == kind and verb != "delete"
        return how(f"{kind} {name}: admission webhook denied the request") if hits else None

    bench.cluster.fault = fault


def spoil(bench: Bench) -> None:
    """Edit an object of the job by hand, so that it is to be applied again."""
    with bench.edited("NetworkPolicy", "sum-pods") as policy:
        policy["spec"]["ingress"].append({})


@pytest.mark.parametrize("how", [RefusedError, UnavailableError])
async def test_what_is_refused_does_not_keep_a_job_from_stopping(bench: Bench, how) -> None:
    await up(bench)
    spoil(bench)
    refuse(bench, "NetworkPolicy", how)
    bench.edit(suspend=True)
    with pytest.raises(ClusterError):
        await bench.step()
    assert ("delete", "StatefulSet", "sum-controller") in bench.cluster.writes
    await bench.settle()
    assert bench.status["phase"] == "Suspended"
    assert not bench.cluster.of("Pod")


async def test_nor_from_ending_at_its_deadline() -> None:
    bench = Bench(lifecycle={"activeDeadlineSeconds": 60})
    await up(bench)
    with bench.edited("PPOJob", "sum") as job:
        job["status"]["startTime"] = rfc3339(NOW)
    spoil(bench)
    refuse(bench, "NetworkPolicy")
    await bench.settle()
    assert bench.status["reason"] == "DeadlineExceeded"
    assert not bench.cluster.of("Pod")


async def test_nor_from_giving_up_the_pods_of_a_dead_node(bench: Bench) -> None:
    await up(bench)
    with bench.edited("Pod", "sum-reward-1") as lost:
        lost["spec"]["nodeName"] = "n"
    silent = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(NOW)}
    node = {"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [silent]}}
    bench.cache.see_node(node)
    spoil(bench)
    refuse(bench, "NetworkPolicy")
    with pytest.raises(RefusedError):
        await bench.step()
    assert ("delete", "Pod", "sum-reward-1") in bench.cluster.writes


async def test_what_pods_need_is_still_waited_for(bench: Bench) -> None:
    refuse(bench, "Service")
    with pytest.raises(RefusedError):
        await bench.step()
    assert not bench.cluster.of("StatefulSet")
    assert not bench.cluster.of("RoleBinding")


def test_nothing_is_applied_to_what_is_about_to_go() -> None:
    """Its generation is new with every edit, and a StatefulSet says of which one it is."""
    paused = dataclasses.replace(make_job(lifecycle={"suspend": True}), generation=2)
    for digest in (CONFIG_DIGEST, "of-before"):
        there = observed(pods=all_pods(is_ready=True, config_digest=digest))
        assert kinds(look(paused, there)) == ["Delete"]


def test_a_controller_is_not_ended_before_the_next_one_can_start() -> None:
    """Its StatefulSet has the new configuration, and somebody has deleted that."""
    pods = all_pods(is_ready=True, config_digest="of-before")
    whole = observed(pods=pods)
    assert "DeletePod" in kinds(look(make_job(), whole))
    children = {key: one for key, one in whole.children.items() if key[0] != "ConfigMap"}
    without = dataclasses.replace(whole, children=children)
    planned = look(make_job(), without)
    assert "Create ConfigMap" in kinds(planned)
    assert "DeletePod" not in kinds(planned)


async def test_what_is_not_wanted_any_more_holds_nothing_up(bench: Bench) -> None:
    """The configuration of an edit was refused, and the next edit asks for another."""
    await up(bench)
    refuse(bench, "ConfigMap")
    bench.edit_spec(steps={"total": 9})
    for _ in range(2):
        with pytest.raises(RefusedError):
            await bench.step()
    assert bench.status["reason"] == "ObjectRefused"
    bench.cluster.fault = lambda _: None
    bench.edit_spec(steps={"total": 10})
    await bench.settle()
    assert bench.status["reason"] != "ObjectRefused"
    assert bench.cache.observed(KEY, UID).refused == {}


def test_only_what_is_asked_for_still_is_told() -> None:
    refused = {("ConfigMap", "sum-config-of-before"): "quota"}
    there = observed(pods=READY, refused=refused)
    assert claim(status_of(make_job(), there), "PodsReady").reason == "EveryPodReady"


def test_a_refusal_is_known_as_long_as_it_is_asked_for_again() -> None:
    woken: list[JobKey] = []
    cache = Cache(woken.append)
    cache.see_job(job_manifest())
    service = CHILDREN["Service", "sum-reward"].manifest
    cache.refuse(make_job(), service, "quota")
    before = len(woken)
    cache.keep_refusals(KEY, {("Service", "sum-reward")})
    assert len(woken) == before
    assert cache.observed(KEY, UID).refused == {("Service", "sum-reward"): "quota"}
    cache.keep_refusals(KEY, set())
    assert woken[before:] == [KEY], "a plan that heeds it was made already"
    assert cache.observed(KEY, UID).refused == {}


def test_a_job_inherits_no_refusal_of_an_earlier_one() -> None:
    younger = job_manifest()
    younger["metadata"]["uid"] = "younger"
    service = CHILDREN["Service", "sum-reward"].manifest
    for is_missed in (False, True):
        cache = Cache(lambda _: None)
        cache.see_job(job_manifest())
        if is_missed:
            cache.refuse(make_job(), service, "quota")
        else:
            cache.forget_job(KEY)
            # The answer to a write that was under way.
            cache.refuse(make_job(), service, "quota")
        cache.see_job(younger)
        cache.refuse(make_job(), service, "quota")
        assert cache.observed(KEY, "younger").refused == {}, is_missed
