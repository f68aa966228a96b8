"""What this machine must have: root, Go where something is to be built, Debian's packages."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from shell import ClusterError, call, step

# What is looked for (a program, or a file below /usr) and the Debian package that holds it.
FOR_BUILDING = {
    "gcc": "gcc",
    "pkg-config": "pkg-config",
    "/usr/include/seccomp.h": "libseccomp-dev",
}
FOR_RUNNING = {"ip": "iproute2", "nft": "nftables", "openssl": "openssl", "unshare": "util-linux"}
# Rules and queries of the chart are read by Prometheus itself.
FOR_TESTS = {"promtool": "prometheus"}
FOR_IMAGES = {"mmdebstrap": "mmdebstrap", "buildah": "buildah", "skopeo": "skopeo"}


def require_root() -> None:
    """Raise a ClusterError for anyone but root."""
    if os.geteuid() != 0:
        raise ClusterError("not root: a node makes namespaces, mounts and cgroups; use sudo")


def require_go() -> None:
    """Raise a ClusterError where there is no Go that can fetch the version that go.mod asks for."""
    if shutil.which("go") is None:
        raise ClusterError(
            "no go on PATH: Kubernetes is built from Go modules; install Go 1.21 or later "
            "(it fetches the version it needs) from go.dev/dl"
        )


def require(wanted: Mapping[str, str]) -> None:
    """Install the Debian packages of programs, or of absolute paths, that are missing."""
    missing = sorted({package for name, package in wanted.items() if not _is_there(name)})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"missing: {' '.join(missing)}: no apt-get here; install them by hand")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"install {' '.join(missing)}"):
        call("apt-get", "update", "-qq", env=quiet)
        call("apt-get", "install", "-qq", "--no-install-recommends", *missing, env=quiet)


def _is_there(name: str) -> bool:
    return Path(name).exists() if name.startswith("/") else shutil.which(name) is not None
