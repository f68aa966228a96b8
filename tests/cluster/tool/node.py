"""The life of the node: from nothing to Ready, and back to nothing."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cgroups
import credentials
import images
import machine
import plan
import programs
from machine import ClusterError, call, step
from places import TOOL, Places

LINK = "ppojob0"
PATIENCE_S = 120.0


def up(places: Places, *, containers: bool = True) -> None:
    """Bring the node to Ready, unless it is; one that runs containers also does without."""
    machine.require({**machine.FOR_RUNNING, **machine.FOR_TESTS})
    whole = plan.make(places)
    if not containers and _is_up(places, whole):
        return
    programs.build(places, containers=containers)
    wanted = whole if containers else plan.make(places, containers=False)
    if not _is_up(places, wanted):
        _end(places)
        try:
            _begin(places, wanted, containers=containers)
        except BaseException:
            # A half-started node would look like a broken one.
            _end(places)
            raise
    print(f"the node is Ready: export KUBECONFIG={places.kubeconfig}", file=sys.stderr)


def down(places: Places) -> None:
    """End the node and all that it made; what was built and imported stays."""
    machine.require(machine.FOR_RUNNING)
    with step("end the node"):
        _end(places)


def _begin(places: Places, wanted: plan.Plan, *, containers: bool) -> None:
    with step("start the node's processes"):
        _write(places, wanted)
        _start(places)
    with step("wait for the API server"):
        _until(places, lambda: _kubectl(places, "get", "--raw=/readyz") == "ok")
    if containers:
        for program in ("pause", "coredns"):
            images.load_program(places, program)
        start = plan.names(places)
    else:
        start = places.node / "node.json"
        start.write_text(json.dumps(plan.fake_node()))
    with step("wait for the node and for DNS" if containers else "wait for the fake node"):
        _kubectl(places, "apply", "--server-side", f"--filename={start}")
        _until(places, lambda: _is_ready(places, wanted))
    # Its being there says that the node came up.
    places.kubeconfig.symlink_to(_kubeconfig(places))


def _write(places: Places, wanted: plan.Plan) -> None:
    """Write all that the processes read."""
    shutil.rmtree(places.logs, ignore_errors=True)
    places.logs.mkdir()
    places.node.mkdir()
    pki = places.node / "pki"
    credentials.write(pki, plan.API, plan.NODE_ADDRESS, plan.SERVICE_ADDRESS)
    from_outside = f"https://{plan.NODE_ADDRESS}:6443"
    _kubeconfig(places).write_text(credentials.kubeconfig(pki, "admin", from_outside))
    for path, text in wanted.files.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    (places.node / "plan.json").write_text(wanted.as_json())


def _start(places: Places) -> None:
    """Start the first process in namespaces of its own, and link it to this machine."""
    groups = cgroups.make(plan.CGROUP)
    inside = {
        "node": f"{plan.NODE_ADDRESS}/{plan.LINK_PREFIX}",
        "host": plan.HOST_ADDRESS,
        "services": plan.SERVICE_RANGE,
    }

    def join() -> None:
        for group in groups:
            group.write_text("0")

    with (places.logs / "first-process.log").open("w") as log:
        subprocess.Popen(
            [
                *("unshare", "--fork", "--pid", "--net", "--mount", "--propagation=slave"),
                "--mount-proc",
                *(sys.executable, TOOL / "first_process.py"),
                *(places.node / "plan.json", places.root, json.dumps(inside)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=join,
            start_new_session=True,
        )
    _until(places, lambda: _first_process() is not None)
    call(*f"ip link add {LINK} type veth peer name eth0 netns {_first_process()}".split())
    call(*f"ip address add {plan.HOST_ADDRESS}/{plan.LINK_PREFIX} dev {LINK}".split())
    call(*f"ip link set {LINK} up".split())
    for outer in (plan.POD_RANGE, plan.SERVICE_RANGE):
        call(*f"ip route add {outer} via {plan.NODE_ADDRESS}".split())


def _end(places: Places) -> None:
    """Remove every trace; each part may be gone already."""
    _refuse_another_checkout(places)
    cgroups.end(plan.CGROUP)
    # Mounts, routes and rules were the namespaces' own, and went with them; the link goes later.
    _until(places, _is_unlinked, seconds=20.0)
    places.kubeconfig.unlink(missing_ok=True)
    for folder in (places.node, places.kubectl):
        shutil.rmtree(folder, ignore_errors=True)


def _is_unlinked() -> bool:
    if Path(f"/sys/class/net/{LINK}").exists():
        call("ip", "link", "delete", LINK)
    return not Path(f"/sys/class/net/{LINK}").exists()


def _is_up(places: Places, wanted: plan.Plan) -> bool:
    """Whether the node of this very plan runs, or heals itself in time."""
    running = places.node / "plan.json"
    if _first_process() is None or not places.kubeconfig.exists():
        return False
    if not running.exists() or running.read_text() != wanted.as_json():
        return False
    try:
        _until(places, lambda: _is_ready(places, wanted), seconds=20.0)
    except ClusterError:
        return False
    return True


def _is_ready(places: Places, wanted: plan.Plan) -> bool:
    ready = '{.status.conditions[?(@.type=="Ready")].status}'
    node = _kubectl(places, "get", f"node/{plan.NODE}", f"--output=jsonpath={ready}")
    if str(plan.names(places)) not in wanted.files:
        return node == "True"
    available = "--output=jsonpath={.status.availableReplicas}"
    names = _kubectl(places, "--namespace=kube-system", "get", "deployment/coredns", available)
    return (node, names) == ("True", "1")


def _until(places: Places, holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait until something holds; what raises a ClusterError does not hold yet."""
    deadline = time.monotonic() + seconds
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except ClusterError as problem:
            last = str(problem)
        time.sleep(0.1)
    raise ClusterError(f"not so after {seconds:.0f} s: {last}; the logs are in {places.logs}")


def _kubectl(places: Places, *arguments: str) -> str:
    """Call kubectl as the administrator, whatever the caller's own configuration or proxy is."""
    environment = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    flags = (f"--kubeconfig={_kubeconfig(places)}", f"--cache-dir={places.kubectl}")
    return call(places.bin / "kubectl", *flags, *arguments, env=environment)


def _kubeconfig(places: Places) -> Path:
    return places.node / "pki" / "outside.conf"


def _first_process() -> int | None:
    """The number, on this machine, of what is process 1 inside."""
    for process in cgroups.processes(plan.CGROUP):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        # A pod's process 1 is one namespace further in.
        if len(numbers) == 3 and numbers[2] == "1":
            return process
    return None


def _refuse_another_checkout(places: Places) -> None:
    """One machine runs one node, and only the checkout that started it ends it."""
    running = _first_process()
    if running is None:
        return
    words = Path(f"/proc/{running}/cmdline").read_bytes().decode().split("\0")
    if str(places.root) not in words:
        owner = next((Path(word).parent for word in words if word.endswith("/.cluster")), "?")
        raise ClusterError(
            f"a node of {owner} is up: this machine runs one; there: make cluster-down"
        )
