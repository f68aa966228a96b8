"""`kubectl ppojob` as a program of this machine."""

import os
import subprocess
import sys
from pathlib import Path

from cluster_access import Cluster, own_environment

BINARIES = Path(sys.executable).parent


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Begin `kubectl ppojob ...`, by kubectl itself where it is at hand."""
    environment = own_environment(
        KUBECONFIG=str(cluster.folder / "kubeconfig"),
        PATH=f"{cluster.folder / 'bin'}:{BINARIES}:{os.environ['PATH']}",
        PYTHONUNBUFFERED="1",
    )
    return subprocess.Popen(
        ["kubectl", "ppojob", *arguments, "--namespace", cluster.namespace],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ppojob(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    with start(cluster, *arguments) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == code, out + err
    return out + err
