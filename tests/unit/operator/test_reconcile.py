import copy
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_bench import KEY, Bench, up
from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, UID, job_manifest, make_job, observed
from operator_plans import READY, all_pods, claim, kinds, look, status_of

from ppojob_operator.cache import Cache
from ppojob_operator.conditions import rfc3339
from ppojob_operator.errors import (
    ClusterError,
    ConflictError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from ppojob_operator.kinds import CHILD_KINDS
from ppojob_operator.state import Manifest


async def test_a_steady_job_costs_no_request_and_a_new_operator_changes_nothing(bench) -> None:
    await up(bench)
    requests, writes = bench.cluster.requests, list(bench.cluster.writes)
    await bench.step()
    await bench.step()
    assert bench.cluster.requests == requests
    bench.restart()
    await bench.settle()
    assert bench.cluster.writes == writes


@pytest.mark.parametrize("behind", [False, True])
async def test_killed_at_any_write_it_ends_the_same(behind: bool) -> None:
    """The operator dies before or behind its n-th write, and another begins from nothing."""
    whole = Bench()
    await whole.settle()
    writes = len([one for one in whole.cluster.writes if one[1] != "Event"])
    assert writes > 15
    for number in range(1, writes + 3):
        bench = Bench()
        await bench.die(number, behind=behind, steps=1)
        await bench.settle()
        assert bench.content() == whole.content(), number


async def test_one_write_in_five_failing_changes_nothing_in_the_end(bench: Bench) -> None:
    whole = Bench()
    await up(whole)
    bench.cluster.fault = lambda n: UnavailableError("500") if n % 5 == 0 else None
    await up(bench)
    assert bench.content() == whole.content()


async def test_keys_are_made_once(bench: Bench) -> None:
    await up(bench)
    before = {one["metadata"]["name"]: one["data"] for one in bench.cluster.of("Secret")}
    assert sorted(before) == ["sum-actor-rollout", "sum-controller", "sum-reward"]
    bench.restart()
    bench.cluster.remove("StatefulSet", "lab", "sum-reward")
    await bench.settle()
    after = {one["metadata"]["name"]: one["data"] for one in bench.cluster.of("Secret")}
    assert after == before


async def test_keys_that_cannot_be_made_are_told_until_they_are(bench: Bench) -> None:
    await up(bench)
    bench.cluster.remove("Secret", "lab", "sum-reward")
    head = {"name": "sum-reward", "namespace": "lab"}
    bench.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": head})
    with bench.edited("Pod", "sum-reward-0") as pod:
        pod["metadata"]["creationTimestamp"] = "2026-01-02T03:00:00Z"
        waits = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
        pod["status"] = {"phase": "Pending", "containerStatuses": [waits]}
    for _ in range(3):
        with pytest.raises(ClusterError, match="sum-reward already exists and does not belong"):
            await bench.step()
    assert bench.status["reason"] == "ObjectRefused"
    assert "Secret sum-reward already exists" in bench.status["message"]
    bench.cluster.remove("Secret", "lab", "sum-reward")
    for _ in range(2):
        await bench.step()
    assert bench.status["reason"] == "Starting"


def deny(bench: Bench, uid: str, words: str, minutes: int) -> None:
    """What the controller of StatefulSets tells of one, so many minutes from now."""
    bench.cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": words.replace(" ", "-"), "namespace": "lab"},
            "involvedObject": {"kind": "StatefulSet", "name": "sum-reward", "uid": uid},
            "message": words,
            "lastTimestamp": rfc3339(datetime.now(UTC) + timedelta(minutes=minutes)),
        }
    )


@pytest.mark.parametrize("other", ["CreateContainerConfigError", ""])
async def test_who_denies_pods_is_told(bench: Bench, other: str) -> None:
    """Also where a container of another role waits, which is the lesser reason."""
    await up(bench)
    if other:
        with bench.edited("Pod", "sum-actor-rollout-0") as pod:
            waits = {"name": "trainer", "state": {"waiting": {"reason": other}}}
            pod["status"] = {"phase": "Pending", "containerStatuses": [waits]}
    uid = bench.cluster.objects["StatefulSet", "lab", "sum-reward"]["metadata"]["uid"]
    deny(bench, uid, "over since the pods were ready", -30)
    bench.cluster.remove("Pod", "lab", "sum-reward-0")
    with bench.edited("PPOJob", "sum") as one:
        one["status"]["startTime"] = "2026-01-02T03:00:00Z"
    await bench.settle()
    assert bench.status["reason"] == ("ContainerWaiting" if other else "PodsMissing")
    deny(bench, "gone", "no such class", 2)
    deny(bench, uid, "pods are forbidden", 0)
    deny(bench, uid, "exceeded quota: small", 1)
    requests = bench.cluster.requests
    await bench.step()
    assert bench.cluster.requests == requests, "asked for again at once"
    bench.restart()
    await bench.settle()
    words = "reward: pod sum-reward-0: not created: exceeded quota: small"
    assert bench.status["reason"] == "PodsDenied"
    assert bench.status["message"].endswith(words)
    told = [one for one in bench.cluster.of("Event") if one.get("reason") == "PodsDenied"]
    assert len(told) == 1


async def test_a_claim_that_is_made_outlives_its_job_and_is_taken_over_by_no_other(bench) -> None:
    bench.edit_spec(checkpoint={"volume": {"size": "20Gi", "storageClassName": "nfs"}})
    await up(bench)
    claim = bench.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"]
    assert "ownerReferences" not in claim["metadata"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "nfs",
    }
    mounted = bench.cluster.objects["Pod", "lab", "sum-reward-0"]["spec"]["volumes"]
    assert {"name": "run", "persistentVolumeClaim": {"claimName": "sum-run"}} in mounted
    with bench.edited("PersistentVolumeClaim", "sum-run") as grown:
        grown["spec"]["resources"]["requests"]["storage"] = "40Gi"
    grown = copy.deepcopy(bench.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"])
    bench.restart()
    await bench.settle()
    job = copy.deepcopy(bench.cluster.objects["PPOJob", "lab", "sum"])
    bench.cluster.remove("PPOJob", "lab", "sum")
    await bench.settle()
    job["metadata"] |= {"uid": "younger", "generation": 1}
    del job["status"]
    bench.cluster.put(job)
    for _ in range(3):
        with pytest.raises(ClusterError, match="kubectl delete pvc sum-run"):
            await bench.step()
    assert bench.names("Pod") == []
    assert bench.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"] == grown
    bench.cluster.remove("PersistentVolumeClaim", "lab", "sum-run")
    await up(bench)
    assert bench.names("Pod") != []


async def test_a_claim_that_somebody_made_is_no_run_to_be_deleted(bench: Bench) -> None:
    head = {"name": "sum-run", "namespace": "lab"}
    bench.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head})
    bench.edit_spec(checkpoint={"volume": {"size": "20Gi"}})
    for _ in range(3):
        with pytest.raises(ClusterError, match=r"use it with checkpoint.volume.claimName: sum-run"):
            await bench.step()
    assert bench.names("Pod") == []


async def test_a_claim_goes_with_its_job_where_that_is_asked_for(bench: Bench) -> None:
    asked = {"size": "1Gi", "accessMode": "ReadWriteOnce", "whenDeleted": "Delete"}
    bench.edit_spec(checkpoint={"volume": asked})
    await up(bench)
    claim = bench.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    bench.cluster.remove("PPOJob", "lab", "sum")
    assert bench.names("PersistentVolumeClaim") == []


@pytest.mark.parametrize("kind", [kind for kind in CHILD_KINDS if kind != "Secret"])
async def test_what_is_deleted_by_hand_comes_back(bench: Bench, kind: str) -> None:
    await up(bench)
    before = bench.content()
    for name in bench.names(kind):
        bench.cluster.remove(kind, "lab", name)
    await up(bench)
    assert bench.content() == before


async def test_what_is_edited_by_hand_is_put_right(bench: Bench) -> None:
    await up(bench)
    before = bench.content()
    with bench.edited("Service", "sum-reward") as service:
        service["spec"]["publishNotReadyAddresses"] = False
    with bench.edited("NetworkPolicy", "sum-pods") as policy:
        policy["spec"]["ingress"].append({})
    with bench.edited("StatefulSet", "sum-reward") as sets:
        sets["spec"]["replicas"] = 7
    await bench.settle()
    assert bench.content() == before


async def test_a_webhook_that_rewrites_is_not_fought(bench: Bench) -> None:
    original = bench.cluster.put

    def put(manifest: Any) -> dict[str, Any]:
        item = copy.deepcopy(dict(manifest))
        if item["kind"] == "StatefulSet":
            container = item["spec"]["template"]["spec"]["containers"][0]
            container["image"] = "cache.local/" + container["image"].split("/")[-1]
        return original(item)

    bench.cluster.put = put  # type: ignore[method-assign]
    await up(bench)
    before = len(bench.cluster.writes)
    await bench.step()
    assert len(bench.cluster.writes) == before


async def test_an_object_of_somebody_else_is_never_taken_over(bench: Bench) -> None:
    foreign = {"name": "sum-controller", "namespace": "lab", "labels": {"team": "x"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": foreign}
    before = copy.deepcopy(bench.cluster.put(account))
    for _ in range(3):
        with pytest.raises(ClusterError):
            await bench.step()
    assert bench.cluster.objects["ServiceAccount", "lab", "sum-controller"] == before
    assert not bench.cluster.of("StatefulSet")
    assert bench.status["reason"] == "ObjectRefused"
    assert "ServiceAccount sum-controller" in bench.status["message"]


async def test_a_name_that_was_taken_and_is_free_is_tried_again(bench: Bench) -> None:
    bench.cluster.fault = lambda number: ConflictError("taken", 409) if number == 1 else None
    with pytest.raises(UnavailableError, match="was just deleted"):
        await bench.step()
    bench.cluster.fault = lambda _: None
    await bench.settle()
    assert len(bench.cluster.of("Secret")) == 3


async def test_a_binding_is_tried_again_until_its_role_is_known(bench: Bench) -> None:
    """A Role that was made a moment ago may be unknown to what judges RoleBindings."""
    create, refusals = bench.cluster.create, [MissingError("rolebindings: not found", 404)]

    async def judged(manifest: Manifest) -> Manifest:
        if manifest["kind"] == "RoleBinding" and refusals:
            raise refusals.pop()
        return await create(manifest)

    bench.cluster.create = judged  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="not found"):
        await bench.step()
    assert bench.cluster.of("StatefulSet"), "pods do not wait for it"
    assert not bench.cluster.of("RoleBinding")
    await bench.settle()
    assert bench.cluster.of("RoleBinding")


async def test_the_first_status_of_a_job_is_written_behind_its_objects(bench: Bench) -> None:
    await bench.step()
    assert len(bench.cluster.of("StatefulSet")) == 3
    assert "status" not in {verb for verb, _, _ in bench.cluster.writes}
    await bench.step()
    assert [verb for verb, _, _ in bench.cluster.writes].count("status") == 1
    assert bench.status["phase"] == "Starting"


async def test_a_job_that_goes_before_its_first_status_is_not_made_again(bench: Bench) -> None:
    await bench.step()
    bench.cluster.remove("PPOJob", "lab", "sum")
    for uid in list(bench.cache._keys):
        bench.cache.remove(uid)
    writes = len(bench.cluster.writes)
    assert await bench.reconciler.reconcile(KEY) is None
    assert len(bench.cluster.writes) == writes


async def test_suspending_lets_the_controller_checkpoint_first(bench: Bench) -> None:
    await up(bench)
    with bench.edited("PPOJob", "sum") as job:
        job["status"]["training"] = {"step": 3, "totalSteps": 8, "stage": "Training"}
    await bench.settle()
    bench.edit(suspend=True)
    # The controller's pod takes its time: its deletion is only asked for.
    controller = bench.cluster.objects["Pod", "lab", "sum-controller-0"]
    controller["metadata"]["ownerReferences"] = []
    controller["metadata"]["deletionTimestamp"] = "2026-01-02T04:00:00Z"
    await bench.settle()
    assert bench.names("StatefulSet") == ["sum-actor-rollout", "sum-reward"]
    assert (bench.status["phase"], bench.status["reason"]) == ("Running", "Suspending")
    bench.cluster.remove("Pod", "lab", "sum-controller-0")
    await bench.settle()
    assert bench.names("StatefulSet") == bench.names("Pod") == []
    assert (bench.status["phase"], bench.status["reason"]) == ("Suspended", "JobSuspended")
    bench.edit(suspend=False)
    await up(bench)
    assert len(bench.cluster.of("Pod")) == 4


async def test_an_ended_job_gives_its_pods_back_and_stays(bench: Bench) -> None:
    await up(bench)
    bench.end_controller()
    await bench.settle()
    assert bench.status["phase"] == "Succeeded"
    assert not bench.cluster.of("Pod")
    before = bench.cluster.requests
    await bench.step()
    assert bench.cluster.requests == before


async def test_an_edit_restarts_the_controller_alone(bench: Bench) -> None:
    await up(bench)
    before = bench.names("Pod")
    bench.edit_spec(steps={"total": 9})
    await bench.settle()
    assert {*before} - {*bench.names("Pod")} == {"sum-controller-0"}
    assert len(bench.cluster.of("ConfigMap")) == 2


async def test_the_objects_of_an_earlier_job_are_waited_for(bench: Bench) -> None:
    await up(bench)
    job = bench.cluster.objects.pop(("PPOJob", "lab", "sum"))
    renewed = copy.deepcopy(job)
    renewed["metadata"] |= {"uid": "younger", "generation": 1}
    del renewed["status"]
    bench.cluster.put(renewed)
    bench.restart()
    await bench.settle()
    services = bench.cluster.of("Service")
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in services} == {UID}
    for kind in ("Pod", *CHILD_KINDS):
        for name in bench.names(kind):
            bench.cluster.objects.pop((kind, "lab", name))
    bench.restart()
    await up(bench)
    assert bench.status["conditions"][2]["status"] == "True"


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
    unreachable = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(NOW)}
    node = {"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [unreachable]}}
    bench.cache.update_node(node)
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


def test_only_what_is_asked_for_still_is_told() -> None:
    refused = {("ConfigMap", "sum-config-of-before"): "quota"}
    there = observed(pods=READY, refused=refused)
    assert claim(status_of(make_job(), there), "PodsReady").reason == "AllPodsReady"


def test_a_job_inherits_no_refusal_of_an_earlier_one() -> None:
    younger = job_manifest()
    younger["metadata"]["uid"] = "younger"
    service = CHILDREN["Service", "sum-reward"].manifest
    for is_missed in (False, True):
        cache = Cache(lambda _: None)
        cache.update_job(job_manifest())
        if is_missed:
            cache.record_refusal(make_job(), service, "quota")
        else:
            cache.forget_job(KEY)
            # The answer to a write that was under way.
            cache.record_refusal(make_job(), service, "quota")
        cache.update_job(younger)
        cache.record_refusal(make_job(), service, "quota")
        assert cache.observed(KEY, "younger").refused == {}, is_missed
