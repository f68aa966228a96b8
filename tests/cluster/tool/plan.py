"""What runs on the node and how it is configured; nothing here touches the machine."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import programs
from places import TOOL, Places

# 198.18.0.0/15 is set aside for testing network devices (RFC 2544): nobody's network is there.
HOST_ADDRESS = "198.18.0.1"
NODE_ADDRESS = "198.18.0.2"
LINK_PREFIX = 30
POD_RANGE = "198.18.128.0/17"
SERVICE_RANGE = "198.19.0.0/16"
SERVICE_ADDRESS = "198.19.0.1"
DNS_ADDRESS = "198.19.0.10"

NODE = "node0"
CGROUP = "ppojob-cluster"
GATES = "GenericWorkload=true,GangScheduling=true"

API = "https://127.0.0.1:6443"
READY = f"{API}/readyz"
FAKE = "kwok.x-k8s.io/node"
"""Annotation by which kwok knows its nodes."""


@dataclass(frozen=True)
class Process:
    name: str  # of its log
    argv: tuple[str, ...]
    after: str = ""  # what must answer before it is started: a URL, a socket's path, or nothing


@dataclass(frozen=True)
class Plan:
    files: dict[str, str]  # what is written before anything starts, by path
    processes: tuple[Process, ...]  # in the order of their start

    def as_json(self) -> str:
        """The same text for the same node: a running node is compared with what it should be."""
        return json.dumps(asdict(self), indent=1)


def make(places: Places, *, containers: bool = True) -> Plan:
    """The plan of this checkout's node; without containers kwok plays one that is not there."""
    processes = _control_plane(places)
    if containers:
        return Plan(_files(places), (*processes, *_runtime(places)))
    return Plan(_audit_policy(places), (*processes, _fake_node(places)))


def _paths(places: Places) -> dict[str, Path]:
    # The key in each path makes a rebuilt program a different plan.
    return {program.name: programs.folder(places, program) for program in programs.PROGRAMS}


def _control_plane(places: Places) -> tuple[Process, ...]:
    node, pki, path = places.node, places.node / "pki", _paths(places)
    quick = ("--kube-api-qps=2000", "--kube-api-burst=4000", "--leader-elect=false")
    etcd = (
        f"{path['etcd']}/etcd",
        f"--data-dir={node}/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        # The data is thrown away with the node: no reason to wait for a disk.
        "--unsafe-no-fsync",
    )
    controllers = (
        f"{path['kube']}/kube-controller-manager",
        f"--kubeconfig={pki}/controller-manager.conf",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials",
        "--concurrent-statefulset-syncs=20",
        f"--feature-gates={GATES}",
        *quick,
    )
    scheduler = (
        f"{path['kube']}/kube-scheduler",
        f"--kubeconfig={pki}/scheduler.conf",
        f"--feature-gates={GATES}",
        *quick,
    )
    return (
        Process("etcd", etcd),
        Process("apiserver", _api_server(places), after="http://127.0.0.1:2379/health"),
        Process("controller-manager", controllers, after=READY),
        Process("scheduler", scheduler, after=READY),
    )


def _fake_node(places: Places) -> Process:
    """kwok, for the node and its pods: they are what an API server knows of them."""
    path = _paths(places)["kwok"]
    kwok = (
        f"{path}/kwok",
        f"--kubeconfig={places.node}/pki/admin.conf",
        f"--config={path}/kwok-stages.yaml",
        f"--manage-nodes-with-annotation-selector={FAKE}={NODE}",
        "--node-lease-duration-seconds=40",
    )
    return Process("kwok", kwok, after=READY)


def fake_node() -> dict[str, object]:
    """The node that kwok keeps Ready."""
    room = {"cpu": "2", "memory": "24Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "annotations": {FAKE: NODE}},
        "status": {"allocatable": room, "capacity": room},
    }


def _runtime(places: Places) -> tuple[Process, ...]:
    """What runs pods."""
    node, pki, path = places.node, places.node / "pki", _paths(places)
    kubelet = (
        f"{path['node']}/kubelet",
        f"--config={node}/kubelet.yaml",
        f"--kubeconfig={pki}/{NODE}.conf",
        f"--hostname-override={NODE}",
        f"--root-dir={node}/kubelet",
        f"--cert-dir={node}/kubelet-certificates",
        f"--node-ip={NODE_ADDRESS}",
    )
    containerd = (f"{path['containerd']}/containerd", f"--config={node}/containerd.toml")
    proxy = (f"{path['node']}/kube-proxy", f"--config={node}/proxy.yaml")
    return (
        Process("containerd", containerd),
        Process("proxy", proxy, after=READY),
        Process("kubelet", kubelet, after=str(places.socket)),
    )


def _api_server(places: Places) -> tuple[str, ...]:
    pki = places.node / "pki"
    return (
        f"{_paths(places)['kube']}/kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--secure-port=6443",
        f"--advertise-address={NODE_ADDRESS}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        # The node's name is in no DNS.
        "--kubelet-preferred-address-types=InternalIP",
        f"--feature-gates={GATES}",
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        f"--audit-policy-file={places.node}/audit-policy.yaml",
        f"--audit-log-path={places.logs}/audit.log",
    )


def names(places: Places) -> Path:
    """The manifest of the cluster's DNS, as it is applied."""
    return places.node / "coredns.yaml"


def _manifest(name: str, **values: object) -> str:
    """A file of `manifests/`, with the value of each `$(NAME)` in it."""
    text = (TOOL / "manifests" / name).read_text()
    for key, value in values.items():
        text = text.replace(f"$({key})", str(value))
    return text


def _audit_policy(places: Places) -> dict[str, str]:
    return {str(places.node / "audit-policy.yaml"): _manifest("audit-policy.yaml")}


def _files(places: Places) -> dict[str, str]:
    node, path = places.node, _paths(places)
    here = {"NODE": node, "NAME": NODE, "SOCKET": places.socket, "PODS": POD_RANGE}
    programs = {name.upper(): path[name] for name in ("cni", "containerd", "runc")}
    pause, dns = image_name(places, "pause"), image_name(places, "coredns")
    containerd = _manifest("containerd.toml", **here, **programs, STORE=places.store, PAUSE=pause)
    return {
        **_audit_policy(places),
        str(names(places)): _manifest("coredns.yaml", ADDRESS=DNS_ADDRESS, IMAGE=dns),
        str(node / "containerd.toml"): containerd,
        # Pods hang on routed links, without a bridge: a reply passes the node's own rules.
        str(node / "cni" / "10-pods.conflist"): _manifest("pods.conflist", **here),
        str(node / "kubelet.yaml"): _manifest(
            "kubelet.yaml", **here, CGROUP=CGROUP, DNS=DNS_ADDRESS
        ),
        str(node / "proxy.yaml"): _manifest("proxy.yaml", **here),
        # Nothing outside the cluster has a name inside it.
        str(node / "resolv.conf"): "nameserver 127.0.0.1\n",
    }


def image_name(places: Places, program: str) -> str:
    """The image that holds one program; another build is another name."""
    (found,) = (each for each in programs.PROGRAMS if each.name == program)
    return f"localhost/ppojob-cluster/{program}:{found.key()}"
