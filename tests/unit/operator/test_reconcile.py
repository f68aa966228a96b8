import copy
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, UID, job_manifest, make_job, observed
from operator_plans import READY, all_pods, claim, kinds, look, status_of
from reconciler_harness import KEY, Harness, up

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


async def test_a_steady_job_costs_no_request_and_a_new_operator_changes_nothing(harness) -> None:
    await up(harness)
    requests, writes = harness.cluster.requests, list(harness.cluster.writes)
    await harness.step()
    await harness.step()
    assert harness.cluster.requests == requests
    harness.restart()
    await harness.settle()
    assert harness.cluster.writes == writes


@pytest.mark.parametrize("behind", [False, True])
async def test_killed_at_any_write_it_ends_the_same(behind: bool) -> None:
    """The operator dies before or behind its n-th write, and another begins from nothing."""
    whole = Harness()
    await whole.settle()
    writes = len([one for one in whole.cluster.writes if one[1] != "Event"])
    assert writes > 15
    for number in range(1, writes + 3):
        harness = Harness()
        await harness.die(number, behind=behind, steps=1)
        await harness.settle()
        assert harness.content() == whole.content(), number


async def test_one_write_in_five_failing_changes_nothing_in_the_end(
    harness: Harness,
) -> None:
    whole = Harness()
    await up(whole)
    harness.cluster.fault = lambda n: UnavailableError("500") if n % 5 == 0 else None
    await up(harness)
    assert harness.content() == whole.content()


async def test_keys_are_made_once(harness: Harness) -> None:
    await up(harness)
    before = {one["metadata"]["name"]: one["data"] for one in harness.cluster.of("Secret")}
    assert sorted(before) == ["sum-actor-rollout", "sum-controller", "sum-reward"]
    harness.restart()
    harness.cluster.remove("StatefulSet", "lab", "sum-reward")
    await harness.settle()
    after = {one["metadata"]["name"]: one["data"] for one in harness.cluster.of("Secret")}
    assert after == before


async def test_keys_that_cannot_be_made_are_told_until_they_are(harness: Harness) -> None:
    await up(harness)
    harness.cluster.remove("Secret", "lab", "sum-reward")
    head = {"name": "sum-reward", "namespace": "lab"}
    harness.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": head})
    with harness.edited("Pod", "sum-reward-0") as pod:
        pod["metadata"]["creationTimestamp"] = "2026-01-02T03:00:00Z"
        waits = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
        pod["status"] = {"phase": "Pending", "containerStatuses": [waits]}
    for _ in range(3):
        with pytest.raises(ClusterError, match="sum-reward already exists and does not belong"):
            await harness.step()
    assert harness.status["reason"] == "ObjectRefused"
    assert "Secret sum-reward already exists" in harness.status["message"]
    harness.cluster.remove("Secret", "lab", "sum-reward")
    for _ in range(2):
        await harness.step()
    assert harness.status["reason"] == "Starting"


def deny(harness: Harness, uid: str, words: str, minutes: int) -> None:
    """What the controller of StatefulSets tells of one, so many minutes from now."""
    harness.cluster.put(
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
async def test_who_denies_pods_is_told(harness: Harness, other: str) -> None:
    """Also where a container of another role waits, which is the lesser reason."""
    await up(harness)
    if other:
        with harness.edited("Pod", "sum-actor-rollout-0") as pod:
            waits = {"name": "trainer", "state": {"waiting": {"reason": other}}}
            pod["status"] = {"phase": "Pending", "containerStatuses": [waits]}
    uid = harness.cluster.objects["StatefulSet", "lab", "sum-reward"]["metadata"]["uid"]
    deny(harness, uid, "over since the pods were ready", -30)
    harness.cluster.remove("Pod", "lab", "sum-reward-0")
    with harness.edited("PPOJob", "sum") as one:
        one["status"]["startTime"] = "2026-01-02T03:00:00Z"
    await harness.settle()
    assert harness.status["reason"] == ("ContainerWaiting" if other else "PodsMissing")
    deny(harness, "gone", "no such class", 2)
    deny(harness, uid, "pods are forbidden", 0)
    deny(harness, uid, "exceeded quota: small", 1)
    requests = harness.cluster.requests
    await harness.step()
    assert harness.cluster.requests == requests, "asked for again at once"
    harness.restart()
    await harness.settle()
    words = "reward: pod sum-reward-0: not created: exceeded quota: small"
    assert harness.status["reason"] == "PodsDenied"
    assert harness.status["message"].endswith(words)
    told = [one for one in harness.cluster.of("Event") if one.get("reason") == "PodsDenied"]
    assert len(told) == 1


async def test_a_claim_that_is_made_outlives_its_job_and_is_taken_over_by_no_other(harness) -> None:
    harness.edit_spec(checkpoint={"volume": {"size": "20Gi", "storageClassName": "nfs"}})
    await up(harness)
    claim = harness.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"]
    assert "ownerReferences" not in claim["metadata"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "nfs",
    }
    mounted = harness.cluster.objects["Pod", "lab", "sum-reward-0"]["spec"]["volumes"]
    assert {"name": "run", "persistentVolumeClaim": {"claimName": "sum-run"}} in mounted
    with harness.edited("PersistentVolumeClaim", "sum-run") as grown:
        grown["spec"]["resources"]["requests"]["storage"] = "40Gi"
    grown = copy.deepcopy(harness.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"])
    harness.restart()
    await harness.settle()
    job = copy.deepcopy(harness.cluster.objects["PPOJob", "lab", "sum"])
    harness.cluster.remove("PPOJob", "lab", "sum")
    await harness.settle()
    job["metadata"] |= {"uid": "younger", "generation": 1}
    del job["status"]
    harness.cluster.put(job)
    for _ in range(3):
        with pytest.raises(ClusterError, match="kubectl delete pvc sum-run"):
            await harness.step()
    assert harness.names("Pod") == []
    assert harness.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"] == grown
    harness.cluster.remove("PersistentVolumeClaim", "lab", "sum-run")
    await up(harness)
    assert harness.names("Pod") != []


async def test_a_claim_that_somebody_made_is_no_run_to_be_deleted(
    harness: Harness,
) -> None:
    head = {"name": "sum-run", "namespace": "lab"}
    harness.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head})
    harness.edit_spec(checkpoint={"volume": {"size": "20Gi"}})
    for _ in range(3):
        with pytest.raises(ClusterError, match=r"use it with checkpoint.volume.claimName: sum-run"):
            await harness.step()
    assert harness.names("Pod") == []


async def test_a_claim_goes_with_its_job_where_that_is_asked_for(
    harness: Harness,
) -> None:
    asked = {"size": "1Gi", "accessMode": "ReadWriteOnce", "whenDeleted": "Delete"}
    harness.edit_spec(checkpoint={"volume": asked})
    await up(harness)
    claim = harness.cluster.objects["PersistentVolumeClaim", "lab", "sum-run"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    harness.cluster.remove("PPOJob", "lab", "sum")
    assert harness.names("PersistentVolumeClaim") == []


@pytest.mark.parametrize("kind", [kind for kind in CHILD_KINDS if kind != "Secret"])
async def test_what_is_deleted_by_hand_comes_back(harness: Harness, kind: str) -> None:
    await up(harness)
    before = harness.content()
    for name in harness.names(kind):
        harness.cluster.remove(kind, "lab", name)
    await up(harness)
    assert harness.content() == before


async def test_what_is_edited_by_hand_is_put_right(harness: Harness) -> None:
    await up(harness)
    before = harness.content()
    with harness.edited("Service", "sum-reward") as service:
        service["spec"]["publishNotReadyAddresses"] = False
    with harness.edited("NetworkPolicy", "sum-pods") as policy:
        policy["spec"]["ingress"].append({})
    with harness.edited("StatefulSet", "sum-reward") as sets:
        sets["spec"]["replicas"] = 7
    await harness.settle()
    assert harness.content() == before


async def test_a_webhook_that_rewrites_is_not_fought(harness: Harness) -> None:
    original = harness.cluster.put

    def put(manifest: Any) -> dict[str, Any]:
        item = copy.deepcopy(dict(manifest))
        if item["kind"] == "StatefulSet":
            container = item["spec"]["template"]["spec"]["containers"][0]
            container["image"] = "cache.local/" + container["image"].split("/")[-1]
        return original(item)

    harness.cluster.put = put  # type: ignore[method-assign]
    await up(harness)
    before = len(harness.cluster.writes)
    await harness.step()
    assert len(harness.cluster.writes) == before


async def test_an_object_of_somebody_else_is_never_taken_over(harness: Harness) -> None:
    foreign = {"name": "sum-controller", "namespace": "lab", "labels": {"team": "x"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": foreign}
    before = copy.deepcopy(harness.cluster.put(account))
    for _ in range(3):
        with pytest.raises(ClusterError):
            await harness.step()
    assert harness.cluster.objects["ServiceAccount", "lab", "sum-controller"] == before
    assert not harness.cluster.of("StatefulSet")
    assert harness.status["reason"] == "ObjectRefused"
    assert "ServiceAccount sum-controller" in harness.status["message"]


async def test_a_name_that_was_taken_and_is_free_is_tried_again(harness: Harness) -> None:
    harness.cluster.fault = lambda number: ConflictError("taken", 409) if number == 1 else None
    with pytest.raises(UnavailableError, match="was just deleted"):
        await harness.step()
    harness.cluster.fault = lambda _: None
    await harness.settle()
    assert len(harness.cluster.of("Secret")) == 3


async def test_a_binding_is_tried_again_until_its_role_is_known(harness: Harness) -> None:
    """A Role that was made a moment ago may be unknown to what judges RoleBindings."""
    create, refusals = harness.cluster.create, [MissingError("rolebindings: not found", 404)]

    async def judged(manifest: Manifest) -> Manifest:
        if manifest["kind"] == "RoleBinding" and refusals:
            raise refusals.pop()
        return await create(manifest)

    harness.cluster.create = judged  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="not found"):
        await harness.step()
    assert harness.cluster.of("StatefulSet"), "pods do not wait for it"
    assert not harness.cluster.of("RoleBinding")
    await harness.settle()
    assert harness.cluster.of("RoleBinding")


async def test_the_first_status_of_a_job_is_written_behind_its_objects(
    harness: Harness,
) -> None:
    await harness.step()
    assert len(harness.cluster.of("StatefulSet")) == 3
    assert "status" not in {verb for verb, _, _ in harness.cluster.writes}
    await harness.step()
    assert [verb for verb, _, _ in harness.cluster.writes].count("status") == 1
    assert harness.status["phase"] == "Starting"


async def test_a_job_that_goes_before_its_first_status_is_not_made_again(
    harness: Harness,
) -> None:
    await harness.step()
    harness.cluster.remove("PPOJob", "lab", "sum")
    for uid in list(harness.cache._keys):
        harness.cache.remove(uid)
    writes = len(harness.cluster.writes)
    assert await harness.reconciler.reconcile(KEY) is None
    assert len(harness.cluster.writes) == writes


async def test_suspending_lets_the_controller_checkpoint_first(harness: Harness) -> None:
    await up(harness)
    with harness.edited("PPOJob", "sum") as job:
        job["status"]["training"] = {"step": 3, "totalSteps": 8, "stage": "Training"}
    await harness.settle()
    harness.edit(suspend=True)
    # The controller's pod takes its time: its deletion is only asked for.
    controller = harness.cluster.objects["Pod", "lab", "sum-controller-0"]
    controller["metadata"]["ownerReferences"] = []
    controller["metadata"]["deletionTimestamp"] = "2026-01-02T04:00:00Z"
    await harness.settle()
    assert harness.names("StatefulSet") == ["sum-actor-rollout", "sum-reward"]
    assert (harness.status["phase"], harness.status["reason"]) == ("Running", "Suspending")
    harness.cluster.remove("Pod", "lab", "sum-controller-0")
    await harness.settle()
    assert harness.names("StatefulSet") == harness.names("Pod") == []
    assert (harness.status["phase"], harness.status["reason"]) == ("Suspended", "JobSuspended")
    harness.edit(suspend=False)
    await up(harness)
    assert len(harness.cluster.of("Pod")) == 4


async def test_an_ended_job_gives_its_pods_back_and_stays(harness: Harness) -> None:
    await up(harness)
    harness.end_controller()
    await harness.settle()
    assert harness.status["phase"] == "Succeeded"
    assert not harness.cluster.of("Pod")
    before = harness.cluster.requests
    await harness.step()
    assert harness.cluster.requests == before


async def test_an_edit_restarts_the_controller_alone(harness: Harness) -> None:
    await up(harness)
    before = harness.names("Pod")
    harness.edit_spec(steps={"total": 9})
    await harness.settle()
    assert {*before} - {*harness.names("Pod")} == {"sum-controller-0"}
    assert len(harness.cluster.of("ConfigMap")) == 2


async def test_the_objects_of_an_earlier_job_are_waited_for(harness: Harness) -> None:
    await up(harness)
    job = harness.cluster.objects.pop(("PPOJob", "lab", "sum"))
    renewed = copy.deepcopy(job)
    renewed["metadata"] |= {"uid": "younger", "generation": 1}
    del renewed["status"]
    harness.cluster.put(renewed)
    harness.restart()
    await harness.settle()
    services = harness.cluster.of("Service")
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in services} == {UID}
    for kind in ("Pod", *CHILD_KINDS):
        for name in harness.names(kind):
            harness.cluster.objects.pop((kind, "lab", name))
    harness.restart()
    await up(harness)
    assert harness.status["conditions"][2]["status"] == "True"


def refuse(harness: Harness, kind: str, how: Callable[[str], ClusterError] = RefusedError) -> None:
    """Have every write of objects of a kind fail, deletions aside."""

    def fault(_: int) -> ClusterError | None:
        verb, of, name = harness.cluster.writes[-1]
        hits = of == kind and verb != "delete"
        return how(f"{kind} {name}: admission webhook denied the request") if hits else None

    harness.cluster.fault = fault


def spoil(harness: Harness) -> None:
    """Edit an object of the job by hand, so that it is to be applied again."""
    with harness.edited("NetworkPolicy", "sum-pods") as policy:
        policy["spec"]["ingress"].append({})


@pytest.mark.parametrize("how", [RefusedError, UnavailableError])
async def test_what_is_refused_does_not_keep_a_job_from_stopping(harness: Harness, how) -> None:
    await up(harness)
    spoil(harness)
    refuse(harness, "NetworkPolicy", how)
    harness.edit(suspend=True)
    with pytest.raises(ClusterError):
        await harness.step()
    assert ("delete", "StatefulSet", "sum-controller") in harness.cluster.writes
    await harness.settle()
    assert harness.status["phase"] == "Suspended"
    assert not harness.cluster.of("Pod")


async def test_nor_from_ending_at_its_deadline() -> None:
    harness = Harness(lifecycle={"activeDeadlineSeconds": 60})
    await up(harness)
    with harness.edited("PPOJob", "sum") as job:
        job["status"]["startTime"] = rfc3339(NOW)
    spoil(harness)
    refuse(harness, "NetworkPolicy")
    await harness.settle()
    assert harness.status["reason"] == "DeadlineExceeded"
    assert not harness.cluster.of("Pod")


async def test_nor_from_giving_up_the_pods_of_a_dead_node(harness: Harness) -> None:
    await up(harness)
    with harness.edited("Pod", "sum-reward-1") as lost:
        lost["spec"]["nodeName"] = "n"
    unreachable = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(NOW)}
    node = {"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [unreachable]}}
    harness.cache.update_node(node)
    spoil(harness)
    refuse(harness, "NetworkPolicy")
    with pytest.raises(RefusedError):
        await harness.step()
    assert ("delete", "Pod", "sum-reward-1") in harness.cluster.writes


async def test_what_pods_need_is_still_waited_for(harness: Harness) -> None:
    refuse(harness, "Service")
    with pytest.raises(RefusedError):
        await harness.step()
    assert not harness.cluster.of("StatefulSet")
    assert not harness.cluster.of("RoleBinding")


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


async def test_what_is_not_wanted_any_more_holds_nothing_up(harness: Harness) -> None:
    """The configuration of an edit was refused, and the next edit asks for another."""
    await up(harness)
    refuse(harness, "ConfigMap")
    harness.edit_spec(steps={"total": 9})
    for _ in range(2):
        with pytest.raises(RefusedError):
            await harness.step()
    assert harness.status["reason"] == "ObjectRefused"
    harness.cluster.fault = lambda _: None
    harness.edit_spec(steps={"total": 10})
    await harness.settle()
    assert harness.status["reason"] != "ObjectRefused"


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
