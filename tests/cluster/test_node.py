"""The node is a real one: pods find, reach and read each other, and only what they may."""

import json
import os
import signal
from collections.abc import Iterator

import node_gpus
import node_processes
import pytest
from cluster_access import Cluster, as_list, eventually
from cluster_jobs import bound_role, restricted_container, restricted_pod, restricted_spec

pytestmark = [pytest.mark.cluster, pytest.mark.containers, pytest.mark.timeout(300)]

PORT = 8000
MARK = "a-pod-of-test-node"
NAME = f"http://pair-1.pair:{PORT}/name"
FETCH = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())"
ASK_THE_API = """
import ssl, sys, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
namespace = open(folder + "namespace").read()
request = urllib.request.Request(
    f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/{sys.argv[1]}",
    headers={"Authorization": "Bearer " + open(folder + "token").read()},
)
try:
    trusted = ssl.create_default_context(cafile=folder + "ca.crt")
    print(urllib.request.urlopen(request, context=trusted).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def container(image: str, *argv: str, **more: object) -> dict[str, object]:
    return restricted_container("main", image, *argv, **more)


def pod_spec(*containers: dict[str, object], **more: object) -> dict[str, object]:
    return restricted_spec(*containers, terminationGracePeriodSeconds=0, **more)


@pytest.fixture(scope="module")
def pair(cluster: Cluster, base_image: str) -> Iterator[Cluster]:
    """A StatefulSet of two pods that serve their own names, and may read pods."""
    serve = f"cd /served && hostname > name && exec python3 -u -m http.server {PORT}"
    mounts = [{"name": "served", "mountPath": "/served"}]
    probe = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    main = container(base_image, "sh", "-c", serve, volumeMounts=mounts, readinessProbe=probe)
    volumes = [{"name": "served", "emptyDir": {}}]
    labels = {"app": "pair"}
    named = {"metadata": {"name": "pair"}}
    rights = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", **named},
        *bound_role("pair", rights, {"kind": "ServiceAccount", "name": "pair"}),
        {
            "apiVersion": "v1",
            "kind": "Service",
            **named,
            "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "either"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": PORT}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            **named,
            "spec": {
                "serviceName": "pair",
                "replicas": 2,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": pod_spec(main, serviceAccountName="pair", volumes=volumes),
                },
            },
        },
    )
    cluster.kubectl("rollout", "status", "statefulset/pair", "--timeout=120s")
    yield cluster
    cluster.kubectl("delete", "statefulset/pair", "--timeout=60s")


@pytest.mark.parametrize(("pod", "other"), [("pair-0", "pair-1"), ("pair-1", "pair-0")])
def test_pods_of_a_set_reach_each_other_by_name(pair: Cluster, pod: str, other: str) -> None:
    answer = pair.execute(pod, "python3", "-c", FETCH, f"http://{other}.pair:{PORT}/name")
    assert answer.strip() == other


def test_a_service_address_reaches_every_pod_behind_it(pair: Cluster) -> None:
    seen = {
        pair.execute("pair-0", "python3", "-c", FETCH, "http://either/name").strip()
        for _ in range(20)
    }
    assert seen == {"pair-0", "pair-1"}


def test_logs_say_who_asked(pair: Cluster) -> None:
    pair.execute("pair-0", "python3", "-c", FETCH, f"http://pair-1.pair:{PORT}/name?logged")
    assert "/name?logged" in pair.kubectl("logs", "pair-1")


@pytest.mark.parametrize(
    ("what", "status"), [("pods/pair-1", "200"), ("secrets", "403"), ("pods", "403")]
)
def test_a_service_account_may_do_what_its_role_says(pair: Cluster, what: str, status: str) -> None:
    assert pair.execute("pair-0", "python3", "-c", ASK_THE_API, what).strip() == status


def test_a_container_is_as_confined_as_it_says(pair: Cluster) -> None:
    assert pair.execute("pair-0", "id", "-u").strip() == "1000"
    status = pair.execute("pair-0", "cat", "/proc/1/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (facts["CapEff"], facts["NoNewPrivs"], facts["Seccomp"]) == ("0" * 16, "1", "2")
    assert "Read-only file system" in pair.refused("exec", "pair-0", "--", "touch", "/there")


def test_a_killed_pod_comes_back_under_its_name(pair: Cluster) -> None:
    before = pair.read("pod", "pair-1", "{.metadata.uid}")
    pair.kubectl("delete", "pod", "pair-1", "--timeout=60s")
    pair.kubectl("rollout", "status", "statefulset/pair", "--timeout=60s")
    assert pair.read("pod", "pair-1", "{.metadata.uid}") != before
    eventually(
        lambda: "pair-1" in pair.execute("pair-0", "python3", "-c", FETCH, "http://either/name")
    )


def test_a_removed_pod_leaves_no_process(cluster: Cluster, base_image: str) -> None:
    if not cluster.is_ours:
        pytest.skip("the pods' processes are in kind's container")
    # An argument that it does not use makes it findable from outside.
    asleep = container(base_image, "python3", "-c", "import time; time.sleep(600)", MARK)
    cluster.apply(restricted_pod("sleeper", asleep, {}, terminationGracePeriodSeconds=0))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
    assert node_processes.with_argument(MARK)
    cluster.kubectl("delete", "pod", "sleeper", "--timeout=60s")
    # Without a grace period the object goes first, and the process a moment later.
    eventually(lambda: not node_processes.with_argument(MARK))


def test_pod_security_refuses_what_is_not_restricted(cluster: Cluster, base_image: str) -> None:
    loose = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose"},
        "spec": {"containers": [{"name": "main", "image": base_image}]},
    }
    why = cluster.refused("apply", "--server-side", "--filename=-", stdin=as_list((loose,)))
    assert 'violates PodSecurity "restricted:latest"' in why


def test_a_gang_waits_until_there_are_gpus_for_all_of_it(cluster: Cluster, base_image: str) -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    claim = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    one = container(base_image, "sleep", "600", **claim)
    spec = {"schedulingGroup": {"podGroupName": "gang"}, "terminationGracePeriodSeconds": 0}
    members = [restricted_pod(name, one, {}, **spec) for name in ("first", "second")]

    def phases() -> list[str]:
        return [cluster.read("pod", name, "{.status.phase}") for name in ("first", "second")]

    def reasons() -> set[str]:
        path = '{.status.conditions[?(@.type=="PodScheduled")].reason}'
        return {cluster.read("pod", name, path) for name in ("first", "second")}

    with node_gpus.offered(cluster, 1):
        cluster.apply(group, *members)
        eventually(lambda: reasons() == {"Unschedulable"})
        assert phases() == ["Pending", "Pending"]
    with node_gpus.offered(cluster, 2):
        eventually(lambda: phases() == ["Running", "Running"])
        cluster.kubectl("delete", "pod", "first", "second", "--timeout=60s")


@pytest.mark.parametrize("name", ["kubelet", "kube-apiserver", "containerd"])
def test_a_killed_process_of_the_node_comes_back(pair: Cluster, name: str) -> None:
    if not pair.is_ours:
        pytest.skip("the node's processes are in kind's container")
    before = node_processes.pid(pair, name)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    eventually(lambda: node_processes.pid(pair, name) not in (before, None))
    eventually(
        lambda: "pair-1" in pair.outcome("exec", "pair-0", "--", "python3", "-c", FETCH, NAME)
    )


def test_the_audit_log_names_who_did_what(cluster: Cluster) -> None:
    if not cluster.is_ours:
        pytest.skip("the audit log is in kind's container")
    cluster.kubectl("get", "configmaps")
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"

    def is_logged() -> bool:
        with (cluster.folder / "logs" / "audit.log").open() as log:
            entries = [json.loads(line) for line in log if path in line]
        return any(
            (each["user"]["username"], each["verb"]) == ("admin", "list") for each in entries
        )

    eventually(is_logged)
