"""This machine: what it must have, and how its programs are called."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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


class ClusterError(Exception):
    """One line: what is wrong with this machine or this input, and what to do about it."""


def call(*argv: str | Path, env: Mapping[str, str] | None = None, log: Path | None = None) -> str:
    """Run a program to its end; answers what it printed.

    Where it fails, a ClusterError ends with the last line of what it wrote. `log` takes all of it,
    where that may be much.
    """
    done = subprocess.run(
        argv, env=env, input="", capture_output=True, text=True, errors="replace", check=False
    )
    if log:
        log.write_text(done.stdout + done.stderr)
    if done.returncode:
        words = " ".join(str(word) for word in argv)
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing was written"]
        where = f" (all of it: {log})" if log else ""
        raise ClusterError(f"`{words}` ended with {done.returncode}: {last[0]}{where}")
    return done.stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    print(f"{what} ... ", end="", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", file=sys.stderr, flush=True)
        raise
    print(f"{time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


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
