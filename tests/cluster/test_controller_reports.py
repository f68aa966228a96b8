"""A controller's own words in its job's status: on a real API server, with its real token."""

import base64
import http.client
import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from chart_programs import helm_on
from cluster_access import Cluster, eventually
from cluster_jobs import bound_role, fake_pod, job, pods, wait_for_pods
from operator_replica import Operator
from ruamel.yaml import YAML

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_trainer.controller.status_writer import (
    DisownedError,
    JobResource,
    NotWrittenError,
    StatusWriter,
)
from ppojob_trainer.kubernetes_api import ApiAccess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

METRICS_PORT = 18395
AT_ONCE = 0.2


@dataclass(frozen=True)
class Operated:
    """A namespace with an operator, the chart's policy, and two jobs whose objects are made."""

    cluster: Cluster
    folder: Path

    def token(self, account: str, pod: str) -> str:
        """A token of an account as its pod gets it from the kubelet."""
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        return self.cluster.kubectl("create", "token", account, *bound)

    def access(self, job: str) -> ApiAccess:
        """The way to the API server with the token of a job's controller."""
        config = YAML(typ="safe").load(self.cluster.folder / "kubeconfig")["clusters"][0]["cluster"]
        folder = self.folder / job
        folder.mkdir(exist_ok=True)
        authority = base64.b64decode(config["certificate-authority-data"])
        (folder / "ca.crt").write_bytes(authority)
        token = self.token(f"{job}-controller", f"{job}-controller-0")
        (folder / "token").write_text(token)
        server = urlsplit(config["server"])
        assert server.hostname
        return ApiAccess(server.hostname, server.port or 443, folder)

    def resource(self, job: str, *, identity: str = "", uid: str = "") -> JobResource:
        """A job as its controller sees it, or as another's or of another uid does."""
        uid = uid or self.cluster.read("ppojob", job, "{.metadata.uid}")
        access = self.access(identity or job)
        return JobResource(access, namespace=self.cluster.namespace, name=job, uid=uid)

    def apply(self, token: str, job: str, **sections: Any) -> str:
        """Apply sections of a job with a token; answers why it was refused, if it was."""
        access = self.access(job)
        trusted = ssl.create_default_context(cafile=str(access.credentials / "ca.crt"))
        connection = http.client.HTTPSConnection(access.host, access.port, context=trusted)
        body = {"apiVersion": "ppojob.dev/v1alpha1", "kind": "PPOJob", "metadata": {"name": job}}
        name = f"{self.cluster.namespace}/ppojobs/{job}{'/status' if 'status' in sections else ''}"
        connection.request(
            "PATCH",
            f"/apis/ppojob.dev/v1alpha1/namespaces/{name}?fieldManager=other&force=true",
            json.dumps(body | sections),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/apply-patch+yaml"},
        )
        message: str = json.loads(connection.getresponse().read()).get("message", "")
        connection.close()
        return message

    def patch(self, job: str, status: dict[str, Any], *, identity: str = "") -> str:
        """Apply any status with the token of a job's controller; answers why it was refused."""
        access = self.access(identity or job)
        return self.apply((access.credentials / "token").read_text(), job, status=status)

    def condition(self, job: str, name: str) -> str:
        path = f'{{.status.conditions[?(@.type=="{name}")].status}}'
        return self.cluster.read("ppojob", job, path)

    def looks(self) -> float:
        """How often the operator has looked at a job or asked the API server of one."""
        counters = ("ppojob_operator_reconciles_total", "ppojob_operator_api_requests_total")
        url = f"http://127.0.0.1:{METRICS_PORT}/metrics"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        lines = opener.open(url, timeout=60).read().decode().splitlines()
        counts = (line for line in lines if line.startswith(counters))
        # Its Lease is renewed and streams are opened again, whatever jobs do.
        of_jobs = (one for one in counts if 'kind="Lease"' not in one and 'verb="watch"' not in one)
        return sum(float(line.rsplit(" ", 1)[1]) for line in of_jobs)


@pytest.fixture(scope="module")
def operated(cluster, crd, tmp_path_factory) -> Iterator[Operated]:
    folder = tmp_path_factory.mktemp("reports")
    # The chart's policy; its replicas have no image and are not waited for.
    without = ("crds.install=false", "image.repository=localhost/none", "image.pullPolicy=Never")
    helm_on(cluster, "upgrade", "--install", *(f"--set={one}" for one in without))
    operator = Operator(cluster, folder, "first", METRICS_PORT=str(METRICS_PORT))
    try:
        one = Operated(cluster, folder)
        for name in ("sums", "other"):
            # Its pods are never placed, so that their readiness is the test's to say.
            cluster.apply(job(name, steps={"total": 100}, roles={}))
            wait_for_pods(cluster, name, 3)
        refusal = "a controller changes status.training only"
        # The policy takes a moment to reach the API server's admission.
        eventually(lambda: refusal in one.patch("sums", {"image": "mine"}))
        yield one
    finally:
        operator.end()
        cluster.kubectl("delete", "ppojob", "--all")
        helm_on(cluster, "uninstall")


def write(resource: JobResource, **fields: Any) -> None:
    """Write a state, as often as it takes until its Role is known to all of the API server."""
    writer = StatusWriter(resource.write, AT_ONCE)
    writer.submit(TrainingStatus(**fields))
    writer.close(60.0)


def test_what_a_controller_says_is_shown(operated: Operated) -> None:
    resource = operated.resource("sums")
    write(resource, attempt=1, step=0, stage="Starting", total_steps=100)
    write(
        resource,
        attempt=1,
        step=7,
        total_steps=100,
        reward=0.75,
        kl=0.0123,
        tokens_per_second=1534.0,
        eta="1h30m",
        stage="Training",
        last_checkpoint_step=6,
    )
    table = operated.cluster.kubectl("get", "ppojob", "sums", "--output=wide").splitlines()
    assert len(table) == 2, table
    names, figures = (line.split() for line in table)
    shown = dict(zip(names, figures, strict=False))
    wanted = {"STEP": "7", "REWARD": "0.75", "TOKENS/S": "1534", "ETA": "1h30m", "KL": "0.0123"}
    assert wanted.items() <= shown.items()
    assert shown["CHECKPOINT"] == "6"
    eventually(lambda: operated.condition("sums", "Checkpointed") == "True")
    found = operated.cluster.get("ppojob", "sums", "--show-managed-fields")
    owned = {
        one["manager"]: set(one["fieldsV1"].get("f:status", {}))
        for one in found["metadata"]["managedFields"]
        if one.get("subresource") == "status"
    }
    assert owned["ppojob-controller"] == {"f:training"}
    assert "f:training" not in owned["ppojob-operator"]
    assert {"f:phase", "f:conditions"} <= owned["ppojob-operator"]


def test_a_controller_says_nothing_of_another_job(operated: Operated) -> None:
    resource = operated.resource("other", identity="sums")
    with pytest.raises(NotWrittenError, match="HTTP 403"):
        resource.write(TrainingStatus(attempt=9))
    assert operated.cluster.read("ppojob", "other", "{.status.training}") == ""


@pytest.fixture
def broad_rights(operated: Operated) -> Iterator[None]:
    """A namespace whose accounts may all write to all jobs, as an administrator may grant it."""
    rule = {
        "apiGroups": ["ppojob.dev"],
        "resources": ["ppojobs", "ppojobs/status"],
        "verbs": ["get", "patch"],
    }
    accounts = f"system:serviceaccounts:{operated.cluster.namespace}"
    subject = {"kind": "Group", "name": accounts, "apiGroup": "rbac.authorization.k8s.io"}
    operated.cluster.apply(*bound_role("everybody", [rule], subject))
    yield
    operated.cluster.kubectl("delete", "role,rolebinding", "everybody")


@pytest.mark.usefixtures("broad_rights")
def test_a_controller_with_rights_over_all_jobs_says_nothing_of_another(operated: Operated) -> None:
    refusal = "a controller reports on its own job only"
    status = {"training": {"attempt": 9}}
    # The rights take a moment to reach the API server's authorizer.
    eventually(lambda: refusal in operated.patch("other", status, identity="sums"))


@pytest.mark.usefixtures("broad_rights")
def test_an_account_that_is_called_a_controller_and_is_none_is_left_alone(operated) -> None:
    cluster, account = operated.cluster, "sweep-controller"
    name = f"{account}-7d4b5-x2k8p"
    pod = fake_pod(cluster, "localhost/none", "other", "sweep", "")
    pod |= {"metadata": {"name": name}, "spec": {**pod["spec"], "serviceAccountName": account}}
    head = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
    cluster.apply(head, pod)
    token, edit = operated.token(account, name), {"numExamine": 1}
    # The rights take a moment to reach the API server's authorizer.
    eventually(lambda: operated.apply(token, "other", spec=edit) == "")
    assert cluster.read("ppojob", "other", "{.spec.numExamine}") == "1"


def test_a_controller_whose_attempt_is_over_falls_silent(operated: Operated) -> None:
    resource = operated.resource("sums")
    write(resource, attempt=4, step=7, stage="Training")
    with pytest.raises(DisownedError, match="a controller of attempt 4 has taken over"):
        resource.write(TrainingStatus(attempt=3, step=8))
    assert operated.cluster.read("ppojob", "sums", "{.status.training.step}") == "7"


def test_a_younger_job_of_the_name_is_not_written_to(operated: Operated) -> None:
    stranger = operated.resource("sums", uid="00000000-0000-0000-0000-000000000000")
    before = operated.cluster.read("ppojob", "sums", "{.status.training}")
    with pytest.raises(DisownedError, match="another job"):
        stranger.write(TrainingStatus(attempt=99, step=99))
    assert operated.cluster.read("ppojob", "sums", "{.status.training}") == before


def test_a_job_that_is_gone_is_told(operated: Operated) -> None:
    resource = operated.resource("other")
    write(resource, attempt=1, step=7, stage="Training")
    # Its account stays for a while, as it does until the garbage collector comes to it.
    operated.cluster.kubectl("delete", "ppojob", "other", "--cascade=orphan")
    with pytest.raises(DisownedError, match="not found"):
        resource.write(TrainingStatus(attempt=1, step=8))


def test_the_operator_follows_the_stage_and_not_the_steps(operated: Operated) -> None:
    cluster, resource = operated.cluster, operated.resource("sums")
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for pod in pods(cluster, "sums"):
        patch = json.dumps({"status": ready})
        cluster.kubectl("patch", pod, "--subresource=status", "--type=merge", f"--patch={patch}")
    write(resource, attempt=6, step=7, stage="Starting")
    eventually(lambda: operated.condition("sums", "PodsReady") == "True")
    eventually(lambda: operated.condition("sums", "Training") == "False")
    write(resource, attempt=6, step=7, stage="Training")
    eventually(lambda: operated.condition("sums", "Training") == "True")
    assert cluster.read("ppojob", "sums", "{.status.phase}") == "Running"
    before = settled(operated)
    for step in range(8, 20):
        write(resource, attempt=6, step=step, reward=step / 100, stage="Training")
        time.sleep(0.3)  # longer than a job that was looked at is left alone
    assert operated.looks() == before
    assert cluster.read("ppojob", "sums", "{.status.training.step}") == "19"
    write(resource, attempt=6, step=19, stage="Recovering")
    eventually(lambda: operated.condition("sums", "Training") == "False")
    assert cluster.read("ppojob", "sums", "{.status.phase}") == "Recovering"
    assert operated.looks() > before


def settled(operated: Operated) -> float:
    """How often the operator has looked, once it looks no more."""
    counts = [-1.0]

    def is_settled() -> bool:
        time.sleep(2.0)
        counts.append(operated.looks())
        return counts[-1] == counts[-2]

    eventually(is_settled)
    return counts[-1]
