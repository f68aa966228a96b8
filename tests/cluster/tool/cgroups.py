"""The control group that everything of the node is in: what is to be ended is whatever is in it."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from machine import ClusterError

MOUNT = Path("/sys/fs/cgroup")
# The processes of the node; those of pods lie beside it, where the kubelet puts them.
PROCESSES = "processes"
# A group competes as one process does, and in this one there are many: as much as sixteen.
WEIGHTS = {"cpu.shares": 16 * 1024, "cpu.weight": 16 * 100}


def make(name: str) -> list[Path]:
    """Make a group in every hierarchy as kubelets want it; answers its `cgroup.procs` files."""
    _pass_on_controllers()
    folders = [hierarchy / name / PROCESSES for hierarchy in _hierarchies()]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for file, weight in WEIGHTS.items():
            if (folder.parent / file).exists():
                (folder.parent / file).write_text(str(weight))
    # On version 1 any one hierarchy is enough to find a process again.
    tracking = [folder for folder in folders if folder.parts[4] in ("pids", name)]
    return [folder / "cgroup.procs" for folder in tracking]


def processes(name: str) -> set[int]:
    """Every process that is in the group or below it."""
    found: set[int] = set()
    for folder in _folders(name):
        try:
            found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        except OSError:  # the group went away between the two looks
            continue
    return found


def end(name: str, seconds: float = 20.0) -> None:
    """Kill every process of the group and remove the group; nothing to do is no error."""
    deadline = time.monotonic() + seconds
    while found := processes(name):
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(found)} do not die: look at them with ps")
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    for folder in _folders(name):
        _remove(folder, deadline)


def _hierarchies() -> list[Path]:
    """The mounts to make groups in: one on version 2, one a controller on version 1."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    found = [folder for folder in MOUNT.iterdir() if (folder / "cgroup.procs").exists()]
    if not any(folder.name == "pids" for folder in found):
        raise ClusterError(
            f"{MOUNT}: no pids controller: pods cannot run here; use another machine"
        )
    # Where two controllers share a mount, the second name is a link to the first.
    return sorted({folder.resolve() for folder in found})


def _pass_on_controllers() -> None:
    """On version 2 a group has the controllers that its parent passes on, and no others."""
    offered = MOUNT / "cgroup.controllers"
    if offered.exists():
        needed = {"cpu", "cpuset", "hugetlb", "memory", "pids"} & set(offered.read_text().split())
        passed_on = " ".join(f"+{controller}" for controller in sorted(needed))
        (MOUNT / "cgroup.subtree_control").write_text(passed_on)


def _folders(name: str) -> Iterator[Path]:
    """All groups below a name, children before their parents."""
    for hierarchy in _hierarchies():
        if (hierarchy / name).exists():
            for folder, _, _ in os.walk(hierarchy / name, topdown=False):
                yield Path(folder)


def _remove(folder: Path, deadline: float) -> None:
    """A group is busy for a moment after its last process died."""
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise ClusterError(f"{folder}: cannot be removed: another group is in it") from None
            time.sleep(0.05)
