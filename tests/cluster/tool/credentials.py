"""Who is who on a node: one authority, one certificate a process, kubeconfigs that hold them."""

import base64
import json
from pathlib import Path

from machine import call

# Each process that calls the API server, and the name (and group) that its rights hang on.
CALLERS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "node0": "/O=system:nodes/CN=system:node:node0",
}
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def write(folder: Path, server: str, node_address: str, service_address: str) -> None:
    """Make everything anew.

    The folder takes `<name>.crt` and `<name>.key` of `ca`, `apiserver` and every caller, `sa.key`
    and `sa.pub` for service accounts, and `<caller>.conf`, which lead the node's own processes to
    `server`.
    """
    folder.mkdir(mode=0o700)
    call(
        *("openssl", "req", "-x509", *_CURVE, "-days", "365", "-subj", "/CN=ppojob-cluster"),
        *("-keyout", folder / "ca.key", "-out", folder / "ca.crt"),
    )
    call("openssl", "genrsa", "-out", folder / "sa.key", "2048")
    call("openssl", "rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")
    services = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    names = [f"DNS:{name}" for name in ("localhost", *services)]
    names += [f"IP:{address}" for address in ("127.0.0.1", node_address, service_address)]
    _certificate(folder, "apiserver", "/CN=kube-apiserver", ",".join(names))
    for caller, subject in CALLERS.items():
        _certificate(folder, caller, subject, f"DNS:{caller},IP:{node_address}")
        (folder / f"{caller}.conf").write_text(kubeconfig(folder, caller, server))


def kubeconfig(folder: Path, caller: str, server: str) -> str:
    """A kubeconfig that needs no other file."""

    def held(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    name = "ppojob-cluster"
    user = {
        "client-certificate-data": held(f"{caller}.crt"),
        "client-key-data": held(f"{caller}.key"),
    }
    cluster = {"server": server, "certificate-authority-data": held("ca.crt")}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": caller, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": caller}}],
            "current-context": name,
        },
        indent=1,
    )


def _certificate(folder: Path, name: str, subject: str, names: str) -> None:
    call(
        *("openssl", "req", "-x509", *_CURVE, "-days", "365", "-subj", subject),
        *("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"),
        *("-addext", f"subjectAltName={names}"),
        *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"),
    )
