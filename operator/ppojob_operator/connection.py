"""Connection to the API server: from the pod's service account, or from a kubeconfig."""

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach an API server."""

    server: str
    ssl: ssl.SSLContext | None  # TLS settings; None for plain HTTP
    token: Callable[[], str]  # returns the current bearer token, or an empty text


def connect(environment: Mapping[str, str] = os.environ) -> Connection:
    """The connection of a pod, else that of `KUBECONFIG` or `~/.kube/config`.

    Raises:
        ValueError: there is neither, or it cannot be used.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if host and (_ACCOUNT / "token").exists():
        address = f"[{host}]" if ":" in host else host
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        context = trust(str(_ACCOUNT / "ca.crt"))
        # The kubelet replaces the token file before the token expires.
        token = (_ACCOUNT / "token").read_text
        return Connection(f"https://{address}:{port}", context, lambda: token().strip())
    path = Path(environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return from_kubeconfig(path)


def from_kubeconfig(path: Path) -> Connection:
    """The connection of a kubeconfig's current context: certificate or token, no plug-ins.

    Raises:
        ValueError: the file is missing, or has no such context.
    """
    try:
        config = YAML(typ="safe").load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
    except (OSError, KeyError, TypeError, StopIteration) as problem:
        raise ValueError(f"{path}: no usable kubeconfig: {problem!r}") from problem
    token = str(user.get("token") or "")
    if not cluster["server"].startswith("https"):
        return Connection(cluster["server"], None, lambda: token)
    tls = trust(
        cluster.get("certificate-authority"),
        _decoded(cluster, "certificate-authority-data") or None,
    )
    _load_certificate(tls, user)
    return Connection(cluster["server"], tls, lambda: token)


def trust(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """TLS settings that trust a cluster's authority; without one, the system's.

    Python 3.13 began to refuse certificates that lack some extensions of RFC 5280. The authorities
    of many clusters lack them, and kubectl accepts those.

    Args:
        cafile: PEM file of certificates.
        cadata: PEM text of certificates.

    Raises:
        OSError: there is no certificate in them.
    """
    tls = ssl.create_default_context(cafile=cafile, cadata=cadata)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _decoded(section: Mapping[str, Any], name: str) -> str:
    return base64.b64decode(section.get(name, "")).decode()


def _load_certificate(tls: ssl.SSLContext, user: Mapping[str, Any]) -> None:
    if "client-certificate" in user:
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
    elif "client-certificate-data" in user:
        # OpenSSL reads client certificates from files only.
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(_decoded(user, "client-certificate-data"))
            file.write("\n" + _decoded(user, "client-key-data"))
            file.flush()
            tls.load_cert_chain(file.name)
