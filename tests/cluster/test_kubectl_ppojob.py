"""`kubectl ppojob` against a real API server, scheduler and kubelet.

Where no trainer is needed, pods of the base image stand in for those of a job: the test makes the
PPOJob, writes the status that an operator would, and makes pods with the labels of the job.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("crd")]

BINARIES = Path(sys.executable).parent


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Begin `kubectl ppojob ...`, by kubectl itself where it is at hand."""
    environment = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    environment |= {
        "KUBECONFIG": str(cluster.folder / "kubeconfig"),
        "PATH": f"{cluster.folder / 'bin'}:{BINARIES}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        ["kubectl", "ppojob", *arguments, "--namespace", cluster.namespace],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ppojob(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """What `kubectl ppojob ...` says."""
    with start(cluster, *arguments) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == code, out + err
    return out + err


def job(name: str, claim: str = "missing", **spec: Any) -> dict[str, Any]:
    whole = {
        "model": {"path": "/models/tiny"},
        "data": {"train": [{"path": "/data/train.jsonl"}]},
        "algorithm": {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
        "steps": {"total": 8},
        "checkpoint": {"every": 2, "volume": {"claimName": claim}},
        "pods": [{"image": "localhost/ppojob/no-such-image:1"}],
        **spec,
    }
    head = {"apiVersion": "ppojob.dev/v1alpha1", "kind": "PPOJob"}
    return {**head, "metadata": {"name": name}, "spec": whole}


def set_status(cluster: Cluster, name: str, **status: Any) -> None:
    change = json.dumps({"status": status})
    cluster.kubectl("patch", "ppojob", name, "--subresource=status", "--type=merge", "-p", change)


def stand_in(cluster: Cluster, image: str, name: str, slug: str, program: str) -> dict[str, Any]:
    """A pod that the command line takes for one of a job's, and that runs a Python program."""
    uid = cluster.read("ppojob", name, "{.metadata.uid}")
    labels = {"ppojob.dev/job": name, "ppojob.dev/job-uid": uid, "ppojob.dev/role": slug}
    limits = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    security = {"runAsNonRoot": True, "runAsUser": 1000}
    container = {
        "name": "trainer",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", "-c", program],
        "securityContext": {**limits, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{slug}-0", "labels": labels},
        "spec": {
            "securityContext": {**security, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def counting(word: str, lines: int, pause: float, after: str = "time.sleep(3600)") -> str:
    return (
        f"import time\nfor i in range({lines}):\n    print('{word}', i)\n"
        f"    time.sleep({pause})\n{after}\n"
    )


def words(text: str) -> list[tuple[str, str]]:
    """Lines of logs as pod and text."""
    pairs = (line.split(" | ", 1) for line in text.splitlines() if " | " in line)
    return [(pod.strip(), said) for pod, said in pairs]


def test_logs_of_all_pods_are_merged_by_time(cluster: Cluster, base_image: str) -> None:
    cluster.apply(job("merged"))
    slugs = {"controller": "c", "actor-rollout": "a", "reward": "r"}
    for slug, word in slugs.items():
        pod = stand_in(cluster, base_image, "merged", slug, counting(word, 20, 0.2))
        cluster.apply(pod)

    def all_said() -> bool:
        logs = [cluster.kubectl("logs", f"merged-{slug}-0") for slug in slugs]
        return all("19" in log for log in logs)

    cluster.kubectl(
        "wait", "--for=condition=Ready", "pod", "-l=ppojob.dev/job=merged", "--timeout=600s"
    )
    eventually(all_said, 600.0)
    said = words(ppojob(cluster, "logs", "merged"))
    assert len(said) == 60
    assert {pod for pod, _ in said} == {f"merged-{slug}-0" for slug in slugs}
    for slug, word in slugs.items():
        assert [text for pod, text in said if pod == f"merged-{slug}-0"] == [
            f"{word} {i}" for i in range(20)
        ]
    assert [text for _, text in said] == in_order_of_time(cluster, slugs)
    assert words(ppojob(cluster, "logs", "merged", "--tail=7")) == said[-7:]
    only = words(ppojob(cluster, "logs", "merged", "--role", "actorRollout"))
    assert {pod for pod, _ in only} == {"merged-actor-rollout-0"}
    assert ppojob(cluster, "logs", "merged", "--since", "1s") == ""
    cluster.kubectl("delete", "ppojob", "merged")
    cluster.kubectl("delete", "pod", "-l=ppojob.dev/job=merged")


def in_order_of_time(cluster: Cluster, slugs: dict[str, str]) -> list[str]:
    """The same lines by what kubectl says of each pod, sorted by their stamps."""
    lines = [
        (*line.split(" ", 1), f"merged-{slug}-0")
        for slug in slugs
        for line in cluster.kubectl("logs", "--timestamps", f"merged-{slug}-0").splitlines()
    ]
    return [text for _, text, _ in sorted(lines, key=lambda line: (line[0], line[2]))]


class Following:
    """A running `logs --follow`, its lines collected as they come."""

    def __init__(self, cluster: Cluster, path: Path, *arguments: str) -> None:
        self._path = path
        environment = {key: text for key, text in os.environ.items() if "proxy" not in key.lower()}
        environment["KUBECONFIG"] = str(cluster.folder / "kubeconfig")
        command = [sys.executable, "-u", "-m", "ppojob_cli", *arguments, "-n", cluster.namespace]
        with path.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def said(self) -> list[tuple[str, str]]:
        return words(self._path.read_text())


def test_followed_logs_go_on_across_pods_that_come_and_go(
    cluster: Cluster, base_image: str, tmp_path: Path
) -> None:
    cluster.apply(job("followed"))
    first = stand_in(cluster, base_image, "followed", "controller", counting("one", 40, 0.1))
    cluster.apply(first)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/followed-controller-0", "--timeout=600s")
    following = Following(cluster, tmp_path / "log", "logs", "followed", "--follow")
    try:
        eventually(lambda: len(following.said) >= 40, 600.0)
        late = stand_in(cluster, base_image, "followed", "reward", counting("two", 5, 0.1))
        cluster.apply(late)
        eventually(lambda: ("followed-reward-0", "two 4") in following.said, 600.0)
        # The same name again, as a StatefulSet does: its log is another one.
        cluster.kubectl("delete", "pod", "followed-controller-0")
        cluster.apply(
            stand_in(cluster, base_image, "followed", "controller", counting("three", 5, 0.1))
        )
        eventually(lambda: ("followed-controller-0", "three 4") in following.said, 600.0)
        assert following.said == [
            *(("followed-controller-0", f"one {i}") for i in range(40)),
            *(("followed-reward-0", f"two {i}") for i in range(5)),
            *(("followed-controller-0", f"three {i}") for i in range(5)),
        ]
        following.process.send_signal(signal.SIGINT)
        assert following.process.wait(60) == 130
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        following.process.kill()
        following.process.wait(60)


def test_following_ends_with_the_job(cluster: Cluster, base_image: str, tmp_path: Path) -> None:
    cluster.apply(job("ended"))
    program = counting("last", 3, 0.0, after="time.sleep(3)\nprint('words')\ntime.sleep(3600)")
    cluster.apply(stand_in(cluster, base_image, "ended", "controller", program))
    following = Following(cluster, tmp_path / "log", "logs", "ended", "--follow")
    try:
        eventually(lambda: ("ended-controller-0", "words") in following.said, 600.0)
        cluster.kubectl("delete", "ppojob", "ended")
        cluster.kubectl("delete", "pod", "ended-controller-0")
        assert following.process.wait(600) == 0
        assert [text for _, text in following.said] == ["last 0", "last 1", "last 2", "words"]
    finally:
        following.process.kill()
        following.process.wait(60)


def test_the_log_of_a_container_that_was_started_again(cluster: Cluster, base_image: str) -> None:
    cluster.apply(job("again"))
    program = counting("life", 1, 0.0, after="time.sleep(2)\nraise SystemExit(3)")
    cluster.apply(stand_in(cluster, base_image, "again", "controller", program))
    restarts = "{.status.containerStatuses[0].restartCount}"
    eventually(lambda: cluster.read("pod", "again-controller-0", restarts) not in {"", "0"}, 600.0)

    def told() -> bool:
        # The kubelet keeps the log of one dead container, and for a moment of none.
        said = words(ppojob(cluster, "logs", "again", "--previous"))
        return said == [("again-controller-0", "life 0")]

    eventually(told, 600.0)
    refused = ppojob(cluster, "logs", "again", "--previous", "--follow", code=2)
    assert refused.startswith("--follow: got --previous")
    cluster.kubectl("delete", "pod", "again-controller-0")
    nothing = ppojob(cluster, "logs", "again", code=2)
    assert nothing.startswith('NAME: got "again": it is Pending and has no pods now')


EXPOSITION = """# HELP ppojob_reward mean score
# TYPE ppojob_reward gauge
ppojob_reward{ppojob="served"} 0.25
# HELP ppojob_steps_total steps done
# TYPE ppojob_steps_total counter
ppojob_steps_total{ppojob="served"} 3.0
"""

SERVING = f"""
import http.server
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {EXPOSITION!r}.encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 7404), Metrics).serve_forever()
"""


def test_metrics_come_through_the_api_server(cluster: Cluster, base_image: str) -> None:
    cluster.apply(job("served"))
    none = ppojob(cluster, "metrics", "served", code=2)
    assert none.startswith(
        "metrics: got no answer from pod served-controller-0: the job is Pending"
    )
    cluster.apply(stand_in(cluster, base_image, "served", "controller", SERVING))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/served-controller-0", "--timeout=600s")

    def serves() -> bool:
        with start(cluster, "metrics", "served", "--raw") as process:
            return process.communicate(timeout=600)[0] == EXPOSITION

    eventually(serves, 600.0)
    assert ppojob(cluster, "metrics", "served").splitlines() == [
        "ppojob_reward       0.250  mean score",
        "ppojob_steps_total  3.000  steps done",
    ]


def test_status_shows_what_the_status_says(cluster: Cluster) -> None:
    cluster.apply(job("told"))
    assert ppojob(cluster, "status", "told") == "told: Pending\n"
    condition = {
        "type": "Training",
        "status": "True",
        "reason": "Stepping",
        "lastTransitionTime": cluster.read("ppojob", "told", "{.metadata.creationTimestamp}"),
    }
    training = {"step": 2, "totalSteps": 8, "reward": 0.5, "kl": 0.001, "eta": "1h30m"}
    roles = [{"name": "controller", "replicas": 1, "ready": 1, "restarts": 2}]
    set_status(
        cluster,
        "told",
        phase="Running",
        reason="Stepping",
        training=training,
        roles=roles,
        conditions=[condition],
    )
    lines = ppojob(cluster, "status", "told").splitlines()
    assert lines[:4] == [
        "told: Running",
        "  step        step 2 of 8  25 %  1h30m left",
        "  why         Stepping",
        "  now         reward 0.500  KL 0.001",
    ]
    assert "              controller  1/1    2" in lines
    wrong = ppojob(cluster, "status", "tolt", code=2)
    assert wrong.endswith("has no such PPOJob; did you mean told\n")


class Operator:
    """An operator on this machine, for the namespace of the test alone."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        environment = {
            **{key: text for key, text in os.environ.items() if "proxy" not in key.lower()},
            "KUBECONFIG": str(cluster.folder / "kubeconfig"),
            "PPOJOB_OPERATOR_NAMESPACE": cluster.namespace,
            "PPOJOB_OPERATOR_WATCH_NAMESPACES": cluster.namespace,
            "PPOJOB_OPERATOR_METRICS_PORT": "0",
            "PPOJOB_OPERATOR_LIVENESS_PORT": "18197",
        }
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ppojob_operator"],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="class")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    one = Operator(cluster, tmp_path_factory.mktemp("operator") / "log")
    yield one
    one.end()


@pytest.mark.usefixtures("operator")
class TestWithAnOperator:
    def explained(self, cluster: Cluster, name: str, holds: Callable[[str], bool]) -> str:
        """The first explanation of which something holds."""
        said: list[str] = []

        def asked() -> bool:
            given = ("explain", name, "--operator-namespace", cluster.namespace)
            said.append(ppojob(cluster, *given))
            return holds(said[-1])

        eventually(asked, 600.0)
        return said[-1]

    def test_a_claim_that_is_missing(self, cluster: Cluster) -> None:
        cluster.apply(job("claimless", claim="nowhere"))
        said = self.explained(cluster, "claimless", lambda text: "Unschedulable" in text)
        assert 'persistentvolumeclaim "nowhere" not found' in " ".join(said.split())
        assert "   -> the scheduler's words: free or add nodes" in said
        cluster.kubectl("delete", "ppojob", "claimless")

    def test_gpus_that_nobody_has_and_an_image_that_is_missing(self, cluster: Cluster) -> None:
        cluster.apply(*claim(cluster, "there"))
        pods = [{"image": "localhost/ppojob/no-such-image:1", "gpuResource": "example.com/gpu"}]
        roles = {"actorRollout": {"gpusPerReplica": 2}}
        cluster.apply(job("hungry", claim="there", roles=roles, pods=pods))

        def both(text: str) -> bool:
            return "Insufficient example.com/gpu" in text and "ImageUnavailable" in text

        said = self.explained(cluster, "hungry", both)
        # What a person can mend at once comes before what needs another node.
        assert said.index("1. ImageUnavailable: ") < said.index("2. Unschedulable: ")
        assert "no-such-image" in said
        cluster.kubectl("delete", "ppojob", "hungry")
        cluster.kubectl("delete", "pv", f"{cluster.namespace}-there", "--wait=false")

    def test_suspended_and_resumed(self, cluster: Cluster) -> None:
        cluster.apply(job("paused"))
        pods = ("get", "pods", "--selector=ppojob.dev/job=paused", "--output=name")
        eventually(lambda: bool(cluster.kubectl(*pods)), 600.0)
        said = ppojob(cluster, "suspend", "paused", "--wait")
        assert said.startswith("paused: is to be suspended\n")
        assert said.endswith("paused: Suspended: Asked: spec.lifecycle.suspend is true\n")
        assert not cluster.kubectl(*pods)
        assert ppojob(cluster, "suspend", "paused") == "paused: suspended already\n"
        said = self.explained(cluster, "paused", lambda text: "Asked" in text)
        assert "set `spec.lifecycle.suspend` to false" in said
        assert ppojob(cluster, "resume", "paused") == "paused: is to be resumed\n"
        eventually(lambda: bool(cluster.kubectl(*pods)), 600.0)
        assert ppojob(cluster, "resume", "paused") == "paused: not suspended already\n"
        cluster.kubectl("delete", "ppojob", "paused")


def test_an_operator_that_is_gone_is_told(cluster: Cluster) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "ppojob-operator"},
        "spec": {
            "holderIdentity": "gone",
            "leaseDurationSeconds": 8,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }
    cluster.kubectl("delete", "lease", "ppojob-operator", "--ignore-not-found")
    cluster.apply(lease)
    cluster.apply(job("alone"))
    said = ppojob(cluster, "explain", "alone", "--operator-namespace", cluster.namespace)
    assert "1. OperatorSilent: no operator leads" in said


def claim(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """A volume of the node, and the claim that it is for."""
    size, access = {"storage": "1Mi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{cluster.namespace}-{name}"},
        "spec": {
            **access,
            "capacity": size,
            "hostPath": {"path": f"/tmp/{cluster.namespace}", "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": cluster.namespace, "name": name},
        },
    }
    wanted = {"resources": {"requests": size}, "volumeName": volume["metadata"]["name"]}
    bound = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {**access, **wanted},
    }
    return [volume, bound]
