"""Kueue, Volcano and Coscheduling, as processes beside a test cluster, by the rights they ship."""

import base64
import functools
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import operator_rights
import pytest
from cluster_access import REPOSITORY, Cluster, eventually, own_environment
from ruamel.yaml import YAML

HOST = "198.18.0.1"
"""This machine, as the node sees it."""
_INSTALLED = frozenset(
    {
        *("Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret"),
        *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    }
)
_WEBHOOKS = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
_YAML = YAML(typ="safe")


@functools.cache
def built(name: str) -> Path:
    """The folder of what is built of one of them: minutes, once."""
    tool = REPOSITORY / "tests" / "cluster" / "tool"
    command = [sys.executable, str(tool), "placing", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr)
    return Path(done.stdout.strip())


class Controller:
    """What a project ships, applied, and its programs, each with the rights of its account."""

    def __init__(self, cluster: Cluster, name: str, folder: Path, kinds: frozenset[str]) -> None:
        self.cluster, self.folder, self.programs = cluster, folder, built(name)
        file = self.programs / f"{name}.yaml"
        self.shipped = [one for one in _YAML.load_all(file.read_text()) if one]
        self.installed = [one for one in self.shipped if one["kind"] in kinds]
        self.running: list[subprocess.Popen[bytes]] = []
        self._with_installed("apply", "--server-side")
        for one in self.installed:
            if one["kind"] == "CustomResourceDefinition":
                cluster.establish(one["metadata"]["name"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, program: str, account: str, namespace: str, *arguments: str) -> None:
        """Start a program; its log is in the folder of the test."""
        kubeconfig = operator_rights.kubeconfig(self.cluster, self.folder, account, namespace)
        with (self.folder / f"{program}.log").open("ab") as log:
            command = [str(self.programs / program), f"--kubeconfig={kubeconfig}", *arguments]
            own = own_environment()
            self.running.append(
                subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT)
            )

    def end(self) -> None:
        """End the programs at once: what they know is in the API server."""
        while self.running:
            process = self.running.pop()
            process.kill()
            process.wait()

    def settings(self, name: str) -> dict[str, str]:
        """The files of a ConfigMap that is shipped."""
        found = (one for one in self.shipped if one["kind"] == "ConfigMap")
        data: dict[str, str] = next(o["data"] for o in found if o["metadata"]["name"] == name)
        return data

    def remove(self) -> None:
        """End everything; webhooks first, behind which nobody answers any more."""
        self.end()
        self.installed.sort(key=lambda one: one["kind"] not in _WEBHOOKS)
        self._with_installed("delete", "--ignore-not-found", "--timeout=120s")

    def _with_installed(self, *command: str) -> None:
        by_namespace: dict[str, list[Any]] = {}
        for one in self.installed:
            by_namespace.setdefault(one["metadata"].get("namespace", ""), []).append(one)
        for namespace, items in sorted(by_namespace.items()):
            listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            where = (f"--namespace={namespace}",) if namespace else ()
            self.cluster.kubectl(*command, *where, "--filename=-", stdin=listed)


class Kueue(Controller):
    """Kueue with its webhooks: the API server finds this machine behind their Service."""

    _NAMESPACE = "kueue-system"

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(cluster, "kueue", folder, _INSTALLED | _WEBHOOKS)
        self.certificates = folder / "certificates"
        self.certificates.mkdir()
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kueue-webhook-service"},
            "spec": {"type": "ExternalName", "externalName": HOST},
        }
        Cluster(cluster.folder, self._NAMESPACE).apply(service)

    def configuration(self) -> dict[str, Any]:
        """What it ships."""
        text = self.settings("kueue-manager-config")["controller_manager_config.yaml"]
        found: dict[str, Any] = _YAML.load(text)
        return found

    def start(self, **changes: Any) -> None:
        """Start it with the configuration it ships and these changes; ends one that runs."""
        self.end()
        port = _free_port()
        given = self.configuration() | {
            "namespace": self._NAMESPACE,
            "webhook": {"host": HOST, "port": 443, "certDir": str(self.certificates)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{port}"},
            "leaderElection": {"leaderElect": False},
            # Another API server, which this one would ask.
            "featureGates": {"VisibilityOnDemand": False},
            **changes,
        }
        file = self.folder / "configuration.yaml"
        _YAML.dump(given, file)
        account = "kueue-controller-manager"
        self.run("kueue", account, self._NAMESPACE, f"--config={file}")
        eventually(self._mount_certificates)
        eventually(lambda: _answers(f"http://127.0.0.1:{port}/readyz"))

    def remove(self) -> None:
        """First what it keeps by finalizers, while it is there to take them away."""
        if not self.running:
            self.start()
        flavors = ("clusterqueues", "resourceflavors", "topologies")
        for kind in ("workloads", "localqueues", *flavors):
            self.cluster.kubectl("delete", f"{kind}.kueue.x-k8s.io", "--all")
        self.cluster.kubectl("delete", "admissionchecks", "--all")
        super().remove()

    def _mount_certificates(self) -> bool:
        """Write its Secret to where its pod would have it mounted; whether there is anything."""
        where = f"--namespace={self._NAMESPACE}"
        secret = self.cluster.get("secret", "kueue-webhook-server-cert", where)
        files: Mapping[str, str] = secret.get("data") or {}
        for name, text in files.items():
            (self.certificates / name).write_bytes(base64.b64decode(text))
        return bool(files)


class Volcano(Controller):
    """Volcano's scheduler and controllers; its webhooks are another program, which does not run."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(cluster, "volcano", folder, _INSTALLED)
        conf = folder / "volcano-scheduler.conf"
        shipped = _YAML.load(self.settings("volcano-scheduler-configmap")[conf.name])
        shipped["tiers"][-1]["plugins"].append({"name": "network-topology-aware"})
        _YAML.dump(shipped, conf)
        plain = ("--logtostderr", "--leader-elect=false", "--enable-healthz=false")
        self.run("controller-manager", "volcano-controllers", "volcano-system", *plain, "-v=4")
        period = "--schedule-period=200ms"
        given = (*plain, f"--scheduler-conf={conf}", period, "--enable-metrics=false", "-v=3")
        self.run("scheduler", "volcano-scheduler", "volcano-system", *given)


class Coscheduling(Controller):
    """The second scheduler of scheduler-plugins; the controller of its PodGroups does not run."""

    _ACCOUNT = "scheduler-plugins-scheduler"
    _NAMESPACE = "coscheduling"

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        head = {"apiVersion": "v1", "kind": "Namespace"}
        cluster.apply({**head, "metadata": {"name": self._NAMESPACE}})
        super().__init__(cluster, "coscheduling", folder, _INSTALLED)
        shipped = _YAML.load(self.settings("scheduler-config")["scheduler-config.yaml"])
        (profile,) = shipped["profiles"]
        profile["plugins"]["multiPoint"]["enabled"] = [{"name": "Coscheduling"}]
        kubeconfig = folder / f"{self._ACCOUNT}.kubeconfig"
        shipped["clientConnection"] = {"kubeconfig": str(kubeconfig)}
        file = folder / "scheduler-config.yaml"
        _YAML.dump(shipped, file)
        given = (f"--config={file}", "--secure-port=0", "-v=3")
        self.run("scheduler", self._ACCOUNT, self._NAMESPACE, *given)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
