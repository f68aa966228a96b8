"""The programs of a node, built from Go modules and kept by what they were built from.

Kubernetes, etcd, helm and kwok are one module: they share most of their packages, and Go compiles
each once. What runs containers is in modules of its own, and is built only where any are run.
"""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import machine
from machine import call, step
from places import TOOL, Places

SOURCES = TOOL / "programs"

_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Program:
    """One build of a module: one or more binaries."""

    name: str  # of its folder in `.cluster/programs`
    module: str = ""  # folder of `programs/` that holds the go.mod; empty: `name`
    packages: tuple[str, ...] = (".",)  # `tool` is every tool that the go.mod names
    runs_containers: bool = False  # whether only a node that runs containers needs it
    tags: str = ""  # of Go
    cgo: bool = False  # whether C code is linked
    aliases: tuple[str, ...] = ()  # of its one binary, which looks at the name it is called by
    stamped: str = ""  # a module whose version becomes that of Kubernetes itself
    stages: tuple[str, ...] = ()  # files of a module, joined into `<name>-stages.yaml`
    # What a module ships to be applied, joined into `<name>.yaml`: files, folders of kustomize, or
    # charts with their own values. Only programs that no node needs have any.
    manifests: tuple[str, ...] = field(default=(), repr=False)

    @property
    def source(self) -> Path:
        """Where its go.mod lies."""
        return SOURCES / (self.module or self.name)

    def key(self) -> str:
        """Changes with anything that decides what is built."""
        digest = hashlib.sha256((repr(self) + "".join(self.manifests)).encode())
        files = [self.source / name for name in ("go.mod", "go.sum")]
        for package in self.packages:
            files += sorted((self.source / package).glob("*.go"))
        for file in filter(Path.exists, files):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


_KUBERNETES = "kubernetes"
PROGRAMS = (
    Program("etcd", _KUBERNETES, ("./etcd",)),
    Program(
        "kube",
        _KUBERNETES,
        ("./kube",),
        aliases=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        stamped="k8s.io/kubernetes",
    ),
    Program(
        "kwok",
        _KUBERNETES,
        ("sigs.k8s.io/kwok/cmd/kwok",),
        stages=(
            "kustomize/stage/node/fast",
            "kustomize/stage/node/heartbeat-with-lease",
            "kustomize/stage/pod/fast",
        ),
    ),
    Program("helm", _KUBERNETES, ("helm.sh/helm/v4/cmd/helm",)),
    Program(
        "node",
        _KUBERNETES,
        ("./node",),
        runs_containers=True,
        aliases=("kubelet", "kube-proxy"),
        stamped="k8s.io/kubernetes",
    ),
    Program("pause", runs_containers=True),
    Program("cni", packages=("tool",), runs_containers=True),
    Program("runc", packages=("tool",), runs_containers=True, tags="seccomp", cgo=True),
    Program(
        "containerd",
        packages=("tool",),
        runs_containers=True,
        tags="no_btrfs no_zfs no_devmapper no_aufs",
    ),
    Program("coredns", runs_containers=True),
)
PLACING = (
    Program("kueue", packages=("tool",), manifests=("config/default",)),
    Program("volcano", packages=("tool",), manifests=("installer/volcano-development.yaml",)),
    Program(
        "coscheduling",
        packages=("tool",),
        manifests=(
            "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",
            "manifests/install/charts/as-a-second-scheduler",
        ),
    ),
)
"""What places pods beside Kubernetes itself: built only where a test asks for it by name."""


def folder(places: Places, program: Program) -> Path:
    """Where a program's binaries are, built or not."""
    return places.programs / program.name / program.key()


def build(places: Places, *, containers: bool = True) -> None:
    """Build what is missing, drop what is out of date, and link `.cluster/bin` to what is there."""
    wanted = [program for program in PROGRAMS if containers or not program.runs_containers]
    missing = [program for program in wanted if not folder(places, program).exists()]
    if missing:
        machine.require_go()
    if any(program.cgo for program in missing):
        machine.require(machine.FOR_BUILDING)
    for program in missing:
        with step(f"build {program.name}"):
            _build(places, program)
    _link(places)


def build_placing(places: Places, name: str) -> Path:
    """Build one of `PLACING`; answers its folder."""
    (program,) = (one for one in PLACING if one.name == name)
    build(places, containers=False)
    if not folder(places, program).exists():
        machine.require_go()
        with step(f"build {name}"):
            _build(places, program)
    return folder(places, program)


def _build(places: Places, program: Program) -> None:
    done = folder(places, program)
    # Renamed when whole: an interrupted build leaves nothing that looks built.
    part = done.with_suffix(".part")
    shutil.rmtree(done.parent, ignore_errors=True)
    part.mkdir(parents=True)
    call(
        *("nice", "-n", "15", "go", "build", "-C", program.source, "-o", f"{part}/"),
        *("-trimpath", "-buildvcs=false", "-tags", program.tags),
        # Nobody debugs them: a tenth less to compile.
        *("-gcflags", "all=-dwarf=false", "-ldflags", " ".join(["-s", "-w", *_stamps(program)])),
        *program.packages,
        env={**os.environ, "CGO_ENABLED": str(int(program.cgo)), "GOFLAGS": "-mod=readonly"},
    )
    for alias in program.aliases:
        (part / alias).symlink_to(program.name)
    if program.stages:
        (part / f"{program.name}-stages.yaml").write_text(_stages(program))
    if program.manifests:
        shipped = (_manifest(places, program, name) for name in program.manifests)
        (part / f"{program.name}.yaml").write_text("\n---\n".join(shipped))
    part.rename(done)


def _stamps(program: Program) -> list[str]:
    """A module carries no version of its own: without this the API server is v0.0.0-master."""
    if not program.stamped:
        return []
    found = re.search(
        rf"{program.stamped} (v(\d+)\.(\d+)\.\S+)", (program.source / "go.mod").read_text()
    )
    assert found, f"{program.source}/go.mod names no version of {program.stamped}"
    version, major, minor = found.groups()
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return [f"-X {_VERSION}.{name}={value}" for name, value in values.items()]


def _stages(program: Program) -> str:
    """What kwok's fake nodes and pods go through: the YAML files that its module ships."""
    module = _module(program)
    files = [file for stage in program.stages for file in sorted((module / stage).glob("*.yaml"))]
    return "\n---\n".join(
        file.read_text() for file in files if not file.name.startswith("kustomization")
    )


def _manifest(places: Places, program: Program, name: str) -> str:
    path = _module(program) / name
    if path.is_file():
        return path.read_text()
    if (path / "Chart.yaml").is_file():
        named = ("--namespace", program.name)
        return call(places.bin / "helm", "template", program.name, path, *named)
    return call(places.bin / "kubectl", "kustomize", path)


def _module(program: Program) -> Path:
    """Where Go keeps the module that the first of a program's packages is from."""
    command = ("go", "list", "-C", program.source, "-f", "{{.Module.Dir}}", *program.packages)
    return Path(call(*command).split()[0])


def _link(places: Places) -> None:
    shutil.rmtree(places.bin, ignore_errors=True)
    places.bin.mkdir()
    for built in (folder(places, program) for program in PROGRAMS):
        for binary in built.iterdir() if built.exists() else ():
            (places.bin / binary.name).symlink_to(binary)
