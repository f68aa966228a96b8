from typing import Any

from operator_jobs import NOW, UID, job_manifest

from ppojob_operator.cache import Cache, GangCache
from ppojob_operator.reading import JobKey
from ppojob_operator.state import (
    ChildKind,
    ControllerReport,
    GangFacts,
    Job,
    Placement,
    Pod,
    Termination,
)

KEY = ("lab", "sum")
LABELS = {"ppojob.dev/job": "sum", "ppojob.dev/job-uid": UID, "ppojob.dev/role": "controller"}


class Watched:
    def __init__(self) -> None:
        self.woken: list[JobKey] = []
        self.cache = Cache(self.woken.append)

    def after(self, manifest: dict[str, Any]) -> int:
        """How often the job is woken by this state of it."""
        before = len(self.woken)
        self.cache.update_job(manifest)
        return len(self.woken) - before

    @property
    def known(self) -> Job:
        return self.cache.job(KEY)

    def pod(self, **fields: Any) -> Pod:
        self.cache.update_pod(pod(**fields))
        (one,) = self.cache.observed(KEY, UID).pods
        return one


def job(version: int, **status: Any) -> dict[str, Any]:
    manifest = job_manifest()
    manifest["metadata"]["resourceVersion"] = str(version)
    return {**manifest, "status": {"phase": "Running", **status}}


def pod(uid: str = "p", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "sum-controller-0",
            "namespace": "lab",
            "uid": uid,
            "labels": LABELS,
            "creationTimestamp": "2026-01-02T03:00:00Z",
            "ownerReferences": [{"uid": "set", "controller": True}],
        },
        "spec": {
            "nodeName": "n",
            "containers": [
                {"name": "istio-proxy", "resources": {"limits": {"memory": "1Gi"}}},
                {"name": "trainer", "resources": {"limits": {"cpu": "1", "memory": "512Mi"}}},
            ],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1", **fields},
    }


def test_steps_wake_nobody_and_turns_do() -> None:
    seen = Watched()
    assert seen.after(job(1)) == 1
    assert seen.after(job(2, training={"step": 1, "stage": "Training"})) == 1
    assert seen.after(job(3, training={"step": 2, "stage": "Training", "reward": 0.5})) == 0
    assert seen.after(job(4, training={"step": 2, "stage": "Training", "lastCheckpointStep": 2}))
    assert not seen.after(
        job(5, training={"step": 4, "stage": "Training", "lastCheckpointStep": 4})
    )
    assert seen.after(job(6, training={"step": 4, "stage": "Recovering", "lastCheckpointStep": 4}))
    assert (seen.known.status.training.step, seen.known.resource_version) == (4, "6")


def test_an_older_state_does_not_come_back() -> None:
    seen = Watched()
    seen.after(job(5, reason="new"))
    assert seen.after(job(4, reason="old")) == 0
    assert seen.known.status.reason == "new"


def test_an_older_state_of_an_object_of_its_does_not_come_back() -> None:
    def service(version: int, port: int) -> dict[str, Any]:
        labels = {"ppojob.dev/job": "sum"}
        head = {"name": "sum-reward", "namespace": "lab", "uid": "s", "labels": labels}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**head, "resourceVersion": str(version)},
            "spec": {"ports": [{"port": port}]},
        }

    seen = Watched()
    seen.cache.record_write(KEY, service(5, 80), service(5, 80))
    woken = len(seen.woken)
    seen.cache.update_child(service(5, 80))
    seen.cache.update_child(service(4, 81))
    assert len(seen.woken) == woken
    known = seen.cache.observed(KEY, UID).children["Service", "sum-reward"]
    assert known.manifest["spec"] == {"ports": [{"port": 80}]}
    seen.cache.update_child(service(6, 82))
    assert len(seen.woken) == woken + 1


def test_a_younger_job_of_the_same_name_is_another() -> None:
    seen = Watched()
    seen.after(job(5))
    younger = job(9)
    younger["metadata"]["uid"] = "younger"
    seen.after(younger)
    seen.cache.remove_job(UID)
    assert seen.known.uid == "younger"


def test_a_report_counts_while_its_pod_is_there() -> None:
    seen = Watched()
    seen.after(job(1))
    seen.cache.update_pod(pod())
    assert [one.name for _, one in seen.cache.controllers()] == ["sum-controller-0"]
    seen.cache.update_report(KEY, ControllerReport("p", "done", "", 0))
    assert seen.cache.observed(KEY, UID).controller is not None
    woken = len(seen.woken)
    seen.cache.update_report(KEY, ControllerReport("p", "done", "", 0))
    assert len(seen.woken) == woken
    seen.cache.remove("p")
    seen.cache.update_pod(pod("q"))
    assert seen.cache.observed(KEY, UID).controller is None


def test_a_pod_of_another_uid_is_not_the_jobs() -> None:
    seen = Watched()
    seen.cache.update_pod(pod())
    assert seen.cache.observed(KEY, "younger").pods == ()


def container(name: str, restarts: int, waiting: str, **end: Any) -> dict[str, Any]:
    return {
        "name": name,
        "restartCount": restarts,
        "state": {"waiting": {"reason": waiting, "message": "back-off 10s"}},
        "lastState": {"terminated": {"finishedAt": "2026-01-02T03:04:05Z", **end}},
    }


def test_a_sidecar_speaks_for_itself_alone() -> None:
    """A kubelet sorts containers by name, and those that webhooks add come before ours."""
    seen = Watched()
    sidecar = container("istio-proxy", 5, "ErrorBackOff", exitCode=2, reason="Error")
    end = {"exitCode": 137, "reason": "OOMKilled", "message": "too\x00 much"}
    trainer = container("trainer", 3, "CrashLoopBackOff", **end)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    one = seen.pod(containerStatuses=[sidecar, trainer], conditions=[target])
    assert (one.restarts, one.waiting_reason) == (3, "CrashLoopBackOff")
    assert one.memory_limit == "512Mi"
    assert (one.disruption, one.owner_uid, one.node) == ("EvictionByEvictionAPI", "set", "n")
    assert one.last == Termination(137, "OOMKilled", "too? much", NOW)
    one = seen.pod(containerStatuses=[sidecar])
    assert (one.restarts, one.waiting_reason, one.last) == (0, "", None)


def test_an_unreachable_node_wakes_the_jobs_on_it() -> None:
    def node(status: str, since: str) -> dict[str, Any]:
        ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
        return {"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [ready]}}

    seen = Watched()
    seen.cache.update_pod(pod())
    seen.cache.update_node(node("True", "2026-01-02T03:00:00Z"))
    woken = len(seen.woken)
    seen.cache.update_node(node("Unknown", "2026-01-02T03:04:05Z"))
    assert seen.woken[woken:] == [KEY]
    assert seen.cache.observed(KEY, UID).unreachable_nodes == {"n": NOW}


def test_jobs_are_woken_by_what_is_new_alone() -> None:
    woken: list[GangFacts] = []
    cache = GangCache(lambda: woken.append(cache.facts("lab")))
    flavor = {"metadata": {"uid": "1", "name": "h200"}, "spec": {"nodeLabels": {"gpu": "h200"}}}
    urgent = {"metadata": {"uid": "2", "name": "urgent"}, "value": 7}
    for _ in range(2):
        cache.update_flavor(flavor)
        cache.update_priority(urgent)
        cache.update_served("PodGroup", "lab", True)
    assert len(woken) == 3
    assert cache.facts("lab") == GangFacts(
        frozenset({"PodGroup"}), {"h200": Placement({"gpu": "h200"})}, {"urgent": 7}
    )
    cache.remove("1")
    cache.remove("2")
    cache.update_served("PodGroup", "lab", False)
    assert cache.facts("lab") == GangFacts()
    assert len(woken) == 6


def test_what_may_be_read_in_one_namespace_is_no_matter_of_another() -> None:
    cache = Cache(lambda _: None)

    def served(namespace: str) -> frozenset[ChildKind]:
        return cache.observed((namespace, "sum"), "uid").gangs.served

    for namespace in ("lab", "other"):
        cache.gangs.update_served("PodGroup", namespace, True)
    cache.gangs.update_served("PodGroup", "other", False)
    assert served("lab") == {"PodGroup"}
    assert not served("other")
    cache.gangs.update_served("Workload", "", True)
    assert served("other") == {"Workload"}
