"""The node's own processes, to be killed, stopped and thawed."""

from pathlib import Path

from cluster_access import Cluster


def pid(cluster: Cluster, name: str) -> int | None:
    """The number of a process by its program (`kubelet`, `kube-apiserver`, `etcd`, ...)."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            program = Path((folder / "cmdline").read_bytes().split(b"\0")[0].decode())
        except (OSError, UnicodeDecodeError):
            continue
        if program.name == name and program.is_relative_to(cluster.folder / "programs"):
            return int(folder.name)
    return None
