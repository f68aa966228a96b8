"""What tools pods with `agent.containers` may do on a real API server, with their own token."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cluster_jobs
import msgspec
import operator_rights
import pytest
from bash_rows import Row
from chart_programs import helm_on
from cluster_access import Cluster, eventually
from cluster_jobs import restricted_container, restricted_pod

from ppojob_api.v1alpha1.agent import AgentSpec, ContainersSpec
from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_api.well_known import LABEL_ROW_OF, row_account_name, row_pod_name
from ppojob_operator.build.objects import base_objects, role_bindings
from ppojob_operator.reading import read_job
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.settings import Settings
from ppojob_trainer.containers.pods import OwnPod, RowPods, row_pod
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.kubernetes_api import ApiAccess
from ppojob_trainer.tools.pool import ToolPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

JOB = "sums"
AGENT = {"tools": [{"name": "bash"}], "containers": {"image": "localhost/none"}}
Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""Changes the metadata and the spec of a pod."""

CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SECRET = {"secretKeyRef": {"name": f"{JOB}-controller", "key": "pairs.json"}}
PORT = {"containerPort": 80, "hostPort": 80}
PROBE = {"httpGet": {"port": 80, "host": "169.254.169.254"}}
MOUNT = {"name": "keys", "mountPath": "/keys"}
KEYS = {"name": "keys", "secret": {"secretName": f"{JOB}-controller"}}


def container(**fields: Any) -> Change:
    return lambda _, spec: spec["containers"][0].update(fields)


def confined(**fields: Any) -> Change:
    return container(securityContext={**CONFINED, **fields})


def labelled(**labels: str) -> Change:
    return lambda metadata, _: metadata["labels"].update(labels)


def annotated(key: str, value: str) -> Change:
    return lambda metadata, _: metadata["annotations"].update({key: value})


def owned(kind: str, version: str) -> Change:
    return lambda metadata, _: metadata["ownerReferences"][0].update(kind=kind, apiVersion=version)


def of_spec(**fields: Any) -> Change:
    return lambda _, spec: spec.update(fields)


def called(name: str) -> Change:
    return lambda metadata, _: metadata.update(name=name)


WRONG: dict[str, list[Change]] = {
    "metadata.name: got": [
        called(f"{JOB}-row-1"),
        called(f"{JOB}-controller-0"),
        called(row_pod_name(f"{JOB}-row-x", "0" * 16)),
        called(row_pod_name("other", "0" * 16)),
        lambda metadata, _: metadata.update(generateName=f"{metadata.pop('name')[:-5]}"),
    ],
    "metadata.labels: ": [
        lambda metadata, _: metadata.pop("labels"),
        labelled(**{LABEL_ROW_OF: "other"}),
        labelled(**{"ppojob.dev/job": JOB}),
    ],
    "metadata.annotations: ": [
        annotated("k8s.v1.cni.cncf.io/networks", "other"),
        annotated("io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel", "true"),
    ],
    "metadata.finalizers: ": [
        lambda metadata, _: metadata.update(finalizers=["example.com/never"]),
    ],
    "spec.priorityClassName: ": [of_spec(priorityClassName="system-node-critical")],
    "metadata.ownerReferences: ": [
        lambda metadata, _: metadata.pop("ownerReferences"),
        owned("ReplicaSet", "apps/v1"),
    ],
    "spec: got ": [
        of_spec(hostNetwork=True),
        of_spec(hostPID=True),
        of_spec(hostIPC=True),
        of_spec(nodeName="node"),
        of_spec(volumes=[KEYS]),
        of_spec(initContainers=[restricted_container("first", "localhost/none")]),
    ],
    "spec: a pod of a row has no token": [
        of_spec(serviceAccountName=row_account_name(JOB)),
        of_spec(automountServiceAccountToken=True),
    ],
    "spec.securityContext: ": [
        of_spec(securityContext={}),
        lambda _, spec: spec["securityContext"].update(seccompProfile={"type": "Unconfined"}),
        lambda _, spec: spec["securityContext"].update(seLinuxOptions={"type": "spc_t"}),
    ],
    "spec.containers: ": [
        container(env=[{"name": "KEYS", "valueFrom": SECRET}]),
        container(envFrom=[{"secretRef": {"name": f"{JOB}-controller"}}]),
        container(ports=[PORT]),
        container(livenessProbe=PROBE),
    ],
    "spec.containers.securityContext: ": [
        container(securityContext=None),
        confined(privileged=True, allowPrivilegeEscalation=None),
        confined(allowPrivilegeEscalation=None),
        confined(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        confined(capabilities={"add": ["NET_BIND_SERVICE"]}),
        confined(seccompProfile={"type": "Unconfined"}),
        lambda *pod: (of_spec(hostUsers=False)(*pod), confined(procMount="Unmasked")(*pod)),
    ],
}
"""What is wrong of a pod, by the beginning of the API server's answer."""


@pytest.fixture(scope="module")
def release(cluster: Cluster, crd: None) -> Iterator[str]:
    """The chart for the namespace of the test, without a running operator."""
    values = ("crds.install=false", "image.repository=localhost/none", "image.pullPolicy=Never")
    given = (*values, f"watchNamespaces={{{cluster.namespace}}}")
    helm_on(cluster, "upgrade", "--install", *(f"--set={one}" for one in given))
    yield f"{cluster.namespace}-ppojob-operator-row-containers"
    helm_on(cluster, "uninstall")


@pytest.fixture(scope="module")
def tools(cluster: Cluster, release: str, tmp_path_factory) -> Callable[..., str]:
    """A job's objects, which the operator's account has made; calls kubectl as its tools pods."""
    cluster.apply(cluster_jobs.job(JOB, agent=AGENT))
    job = read_job(cluster.get("ppojob", JOB))
    assert job.validated is not None
    config = pod_config(job, job.validated)
    of_operator = f"--as=system:serviceaccount:{cluster.namespace}:ppojob-operator"
    create = ("create", "--filename=-", of_operator)
    cluster.kubectl(*create, stdin=listed(base_objects(job, config)))
    binding = role_bindings(job, config, Settings(row_containers_role=release))[-1]
    # The API server accepts it once its authorizer knows the ClusterRole.
    eventually(lambda: "created" in cluster.outcome(*create, stdin=json.dumps(binding)))
    folder = tmp_path_factory.mktemp("tools")
    kubeconfig = operator_rights.kubeconfig(cluster, folder, row_account_name(JOB))

    return lambda *arguments, stdin="": cluster.outcome(
        f"--kubeconfig={kubeconfig}", *arguments, stdin=stdin
    )


def listed(objects: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects]})


def row(*changes: Change) -> dict[str, Any]:
    """The pod of a row as tools pods make it, with these changes."""
    own = {
        "metadata": {"name": f"{JOB}-tools-0", "uid": "none"},
        "spec": {"nodeSelector": {"pool": "rows"}, "imagePullSecrets": [{"name": "registry"}]},
    }
    nowhere = ApiAccess("", 0, Path())
    pods = RowPods(nowhere, "", JOB, "", ContainersSpec.model_validate(AGENT["containers"]))
    vars(pods)["own"] = msgspec.convert(own, OwnPod)
    pod = row_pod(pods, "0123456789abcdef", "step 1/train/row 1", "localhost/none")
    for change in changes:
        change(pod["metadata"], pod["spec"])
    return pod


def test_tools_pods_create_enter_and_delete_pods_of_their_rows_and_no_others(
    cluster: Cluster, tools: Callable[..., str]
):
    create = ("create", "--filename=-")
    trial = (*create, "--dry-run=server")
    eventually(lambda: "metadata.name: got" in tools(*trial, stdin=listed([row(called("other"))])))
    # The pod of a row passes Pod Security `restricted`, which the policy does not rely on.
    level = "pod-security.kubernetes.io/enforce=privileged"
    assert "created" in tools(*trial, stdin=listed([row()]))
    cluster.kubectl("label", "namespace", cluster.namespace, "--overwrite", level)
    wrong = [(answer, change) for answer, changes in WRONG.items() for change in changes]
    every = listed(row(change) for _, change in wrong)
    answers = tools(*trial, stdin=every).strip().splitlines()
    for (answer, _), said in zip(wrong, answers, strict=True):
        assert f"denied request: {answer}" in said
    image = restricted_container("trainer", "localhost/none")
    theirs = (f"{JOB}-tools-0", f"{JOB}-controller-0")
    cluster.apply(*(restricted_pod(one, image, {}) for one in theirs))
    uid = cluster.read("pod", theirs[0], "{.metadata.uid}")
    mine = row(lambda metadata, _: metadata["ownerReferences"][0].update(uid=uid))
    name = mine["metadata"]["name"]
    assert "created" in tools(*create, stdin=listed([mine]))
    assert cluster.read("pod", name, "{.spec.serviceAccountName}") == "default"
    # It runs nowhere, which the API server sees only after the policy.
    assert "does not have a host assigned" in tools("exec", name, "--", "true")
    for refused in (("exec", theirs[1], "--", "true"), ("delete", "pod", theirs[1])):
        assert "denied request: metadata.name: got" in tools(*refused)
    for refused in (
        ("get", "pods"),
        ("get", "secret", f"{JOB}-controller"),
        ("delete", "pods", "--all"),
        ("patch", "pod", name, "--patch={}"),
        ("attach", name),
    ):
        assert "cannot" in tools(*refused), refused
    # Those whom RBAC lets do more, and a job whose name ends like the account.
    account = f"--as=system:serviceaccount:{cluster.namespace}:{JOB}-row-containers"
    by, group = ("--as-group=system:masters", f"/api/v1/namespaces/{cluster.namespace}/pods")
    said = cluster.outcome("delete", f"--raw={group}", account, by)
    assert 'denied request: metadata.name: got ""' in said
    said = cluster.outcome(*trial, f"{account}-row-containers", by, stdin=listed([row()]))
    assert "denied request: metadata.name: got" in said
    assert "deleted" in tools("delete", "pod", name)


def test_the_operator_itself_may_enter_no_pod(cluster: Cluster, tools: object):
    account = f"--as=system:serviceaccount:{cluster.namespace}:ppojob-operator"
    may = ("auth", "can-i", "create", "pods", "--subresource=exec", account)
    assert cluster.outcome(*may).strip() == "no"


def test_the_policy_was_type_checked_without_a_warning(cluster: Cluster, release: str):
    kind = "validatingadmissionpolicy"
    eventually(lambda: cluster.read(kind, release, "{.status.observedGeneration}") == "1")
    assert cluster.read(kind, release, "{.status.typeChecking.expressionWarnings}") == ""


@pytest.fixture
def access(cluster: Cluster, tools: object, tmp_path: Path) -> ApiAccess:
    """The API server as tools pods reach it."""
    config = json.loads((cluster.folder / "kubeconfig").read_text())
    (server,) = (one["cluster"] for one in config["clusters"])
    token = cluster.kubectl("create", "token", row_account_name(JOB), "--duration=1h")
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(server["certificate-authority-data"]))
    address = urlsplit(server["server"])
    return ApiAccess(address.hostname or "", address.port or 443, tmp_path)


@pytest.mark.containers
def test_commands_of_a_row_run_in_its_pod(
    cluster: Cluster, access: ApiAccess, base_image: str, caplog: pytest.LogCaptureFixture
):
    """The server of tools runs beside the cluster, with the rights of a tools pod."""
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", cluster.namespace, "--overwrite", level)
    owner = f"{JOB}-tools-1"
    content = {**restricted_container("trainer", base_image), "command": ["sleep", "infinity"]}
    cluster.apply(restricted_pod(owner, content, {}))
    given = {"image": base_image, "memory": "64Mi", "user": 1000, "startSeconds": 25}
    agent = AgentSpec.model_validate({**AGENT, "containers": given})
    assert agent.containers is not None
    pods = RowPods(access, cluster.namespace, JOB, owner, agent.containers)
    pods.check()
    sandbox = SandboxSpec(time_limit_seconds=2.0)
    with ToolPool(agent, sandbox=sandbox, open_container=pods.open) as pool:
        text = 'it\'s "fine"\n' * 20_000  # more than a packet, and than an argument may have
        row = Row(pool, 0, folder="/tmp", files={"a/b.txt": text}, setup="echo ready > state",
                  test="cat a/b.txt | sha256sum - own.txt | cut -d' ' -f1 | uniq | wc -l",
                  test_files={"own.txt": text}, test_output="1")  # fmt: skip
        assert row.run("id -u; pwd; hostname; cat state; cat nothing; exit 3") == (
            "1000\n/tmp\nrow\nready\ncat: nothing: No such file or directory\n[exit status 3]"
        )
        assert row.run("ls /var/run/secrets; env | grep -c KUBERNETES").startswith("ls: cannot")
        row.run("setsid sleep 97 & echo one >> state")
        assert "sleep97" not in row.run("cat /proc/[0-9]*/cmdline | tr -d '\\0'")
        assert row.run("sleep 97") == "Error: it took too long."
        (name,) = (one for one in names_of(cluster) if one.startswith(f"{JOB}-row-"))
        cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        assert row.run("cat state") == "ready\none"  # in another pod, by repetition
        full = row.answer("python3 -c 'print(len(b\"x\" * (1 << 30)))'")
        assert full.failure in {"", "died"}  # by whether the kernel kills one process or all
        assert row.run("cat state") == "ready\none"
        assert row.end().reward == 1.0
        lost = Row(pool, 1, image="localhost/none:1")
        assert [lost.answer("ls").failure for _ in range(2)] == ["died", "died"]
        assert any("ErrImage" in line or "ImagePull" in line for line in caplog.messages)
        assert lost.end().reward == 0.0
        assert not [one for one in names_of(cluster) if one.startswith(f"{JOB}-row-")]
    root = agent.containers.model_copy(update={"user": 0})
    with pytest.raises(ConfigError, match=r"containers: got .*user.*: the API server refuses"):
        RowPods(access, cluster.namespace, JOB, owner, root).check()


def names_of(cluster: Cluster) -> list[str]:
    return [one["metadata"]["name"] for one in cluster.get("pods")["items"]]
