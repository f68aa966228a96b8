"""The first process inside the node: lays out its mounts and its network, then keeps it running.

It is started in process, mount and network namespaces of its own (`unshare`), by root, with the
path of the plan as its argument. All that the node mounts, binds or routes is inside, so that it
ends with this process, however that ends.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

# What a running node writes outside of its own folder lands in a layer that is thrown away.
LAYERED = ("/etc", "/opt", "/usr/libexec", "/var")

# The kubelet would set these for the whole machine: it is shown that they are as it wants them.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

TICK_S = 0.1
RESTART_S = 1.0


@dataclass
class Kept:
    """A process that is to run."""

    name: str  # of its log
    argv: list[str]
    after: str  # what must answer before its first start
    pid: int | None = None  # it runs, as this process
    not_before: float = 0.0  # the earliest time of its next start, on the monotonic clock


def main() -> None:
    """Lay out the node and keep its processes running until killed."""
    plan, root = Path(sys.argv[1]), Path(sys.argv[2])
    addresses = json.loads(sys.argv[3])
    lay_out_mounts(root)
    lay_out_network(**addresses)
    kept = [Kept(**process) for process in json.loads(plan.read_text())["processes"]]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        reap(kept)
        waiting = start(kept, root / "logs")
        signal.sigtimedwait({signal.SIGCHLD}, TICK_S if waiting else 60.0)


def lay_out_mounts(root: Path) -> None:
    """Hide what the node would write to, except its own folder."""
    aside = Path("/run/ppojob-cluster")
    mount("-t", "tmpfs", "tmpfs", "/run")
    aside.mkdir()
    mount("--bind", str(root), str(aside))
    layers = root / "node" / "layers"
    for folder in filter(os.path.isdir, LAYERED):
        upper, work = layers / folder[1:] / "upper", layers / folder[1:] / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir={folder},upperdir={upper},workdir={work}"
        mount("-t", "overlay", "overlay", "-o", options, folder)
    # The checkout may itself lie below one of these.
    root.mkdir(parents=True, exist_ok=True)
    mount("--move", str(aside), str(root))
    settings = root / "node" / "kernel-settings"
    for name, wanted in KERNEL_SETTINGS.items():
        file = settings / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{wanted}\n")
        mount("--bind", str(file), f"/proc/sys/{name}")
    # Pods' volumes and containerd's mounts are passed on within the node, and never out of it.
    mount("--make-rshared", "/")


def lay_out_network(node: str, host: str, services: str) -> None:
    """Take the link that the machine put here, and send nothing astray.

    `node` and `host` are the two sides' addresses on the link. What is for `services`, and no rule
    takes, ends on a bridge without ports, and never leaves.
    """
    while subprocess.run(["ip", "link", "show", "eth0"], capture_output=True).returncode:
        time.sleep(TICK_S)
    for arguments in (
        "link set lo up",
        f"address add {node} dev eth0",
        "link set eth0 up",
        f"route add default via {host}",
        "link add services type bridge",
        "link set services up",
        f"route add {services} dev services",
    ):
        subprocess.run(["ip", *arguments.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def reap(kept: list[Kept]) -> None:
    """Take the ends of all children, those that lost their own parent included."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for process in kept:
            if process.pid == pid:
                process.pid, process.not_before = None, time.monotonic() + RESTART_S


def start(kept: list[Kept], logs: Path) -> bool:
    """Start what is not running and may start; answers whether something still waits."""
    for process in kept:
        if process.pid is None and time.monotonic() > process.not_before and answers(process.after):
            process.pid, process.after = spawn(process, logs), ""
    return any(process.pid is None for process in kept)


def spawn(process: Kept, logs: Path) -> int:
    """Start a process with a log of its own; answers its number."""
    log = os.open(logs / f"{process.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return os.posix_spawn(
            process.argv[0],
            process.argv,
            # What a person's environment holds (proxies, Go's switches) is not part of the plan.
            {
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
            },
            file_actions=[(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
            setsigmask=[],
            setsid=True,
        )
    finally:
        os.close(log)


def answers(what: str) -> bool:
    """Whether a URL says 200, or a socket accepts; nothing to ask is an answer."""
    if not what:
        return True
    try:
        if what.startswith("/"):
            with socket.socket(socket.AF_UNIX) as asked:
                asked.connect(what)
            return True
        # Only ever our own loopback, and only whether it is there.
        context = ssl._create_unverified_context()
        with urllib.request.urlopen(what, timeout=1, context=context) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


if __name__ == "__main__":
    main()
