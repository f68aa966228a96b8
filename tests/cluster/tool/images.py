"""Images without a registry: a Debian base, the targets of our Dockerfile, and how they come in."""

import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import layout
import machine
import plan
import programs
from machine import ClusterError, call, step
from places import Places

SUITE = "bookworm"
PACKAGES = (
    *("ca-certificates", "python3", "python3-venv"),
    # What the trainer's image installs where its base lacks it.
    *("libnuma1", "libseccomp2", "bubblewrap"),
)

# What the machine knows about package registries and authorities, shown to the build and not kept.
HOST_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def base(places: Places) -> Path:
    """Make the image that our Dockerfile builds upon, once a recipe; answers its layout."""
    done, recipe = places.images / "base", places.images / "base.recipe"
    wanted = json.dumps([SUITE, PACKAGES])
    if recipe.exists() and recipe.read_text() == wanted:
        return done
    machine.require(machine.FOR_IMAGES)
    places.images.mkdir(exist_ok=True)
    root_file_system = places.images / "base.tar"
    with step(f"make a Debian {SUITE} base image"):
        call(
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
            *(SUITE, root_file_system),
            # The same packages give the same bytes, and buildah's layers above them stay valid.
            env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
        )
        layout.write(done, root_file_system)
        recipe.write_text(wanted)
    return done


def image(target: str) -> str:
    """The name that pods call a target by."""
    return f"localhost/ppojob/{target}:dev"


def build(places: Places, target: str, build_args: Sequence[str] = ()) -> Path:
    """Build a target of the Dockerfile and return its layout; layers are kept by their inputs."""
    context = places.root.parent
    if not (context / "Dockerfile").exists():
        raise ClusterError(f"{context}/Dockerfile: not found: there is nothing to build")
    machine.require(machine.FOR_IMAGES)
    base(places)
    store = places.images / "buildah"
    shown = [f"--volume={file}:{file}:ro" for file in HOST_FILES if Path(file).exists()]
    with step(f"build image {target}"):
        _unseen(
            *(places, "buildah", "--storage-driver=overlay"),
            *(f"--root={store}", f"--runroot={store}-run"),
            *("build", "--layers", "--isolation=chroot", "--network=host", *shown),
            *(f"--build-arg={each}" for each in ("BASE=oci:base", *build_args)),
            *(f"--target={target}", f"--tag={image(target)}"),
            context,
            log=places.images / f"{target}.log",
        )
    done = places.images / target
    with step(f"write image {target}"):
        # Layers as they are: what the layout holds from last time is not written again.
        _unseen(
            *(places, "skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"),
            f"containers-storage:[overlay@{store}+{store}-run]{image(target)}",
            f"oci:{done}:dev",
        )
        layout.keep_named(done)
    return done


def load(places: Places, target: str) -> str:
    """Bring a built target into the running node; answers its name."""
    done = places.images / target
    if not (done / "index.json").exists():
        raise ClusterError(f"{target}: not built; first: image build {target}")
    bring_in(places, done, image(target))
    return image(target)


def load_program(places: Places, program: str) -> None:
    """Bring in the image that holds one of the node's own programs and nothing else."""
    name = plan.image_name(places, program)
    if name in _ctr(places, "images", "ls", "-q").split():
        return
    (found,) = (each for each in programs.PROGRAMS if each.name == program)
    root_file_system = places.node / f"{program}.tar"
    with tarfile.open(root_file_system, "w") as tar:
        tar.add(programs.folder(places, found) / program, program)
    made = places.node / f"image-{program}"
    layout.write(made, root_file_system, [f"/{program}"])
    bring_in(places, made, name)


def bring_in(places: Places, made: Path, name: str) -> None:
    """Import a layout under a name; only blobs that containerd lacks are sent."""
    if not places.socket.exists():
        raise ClusterError("no node is up to take the image; first: make cluster-up")
    known = set(_ctr(places, "content", "ls", "-q").split())
    with step(f"import {name}"):
        with subprocess.Popen(
            [*_client(places), "images", "import", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                layout.archive(made, name, known, process.stdin)
                process.stdin.close()
            except BrokenPipeError:
                process.stdin = None
            said = process.stdout.read().decode(errors="replace").strip()
        if process.returncode:
            raise ClusterError(f"import of {name} ended with {process.returncode}: {said}")
        layout.share(made, places.content)


def _unseen(places: Places, *argv: str | Path, log: Path | None = None) -> None:
    """Call a program in our folder, whose mounts go with it, however it ends."""
    call("unshare", "--mount", f"--wd={places.images}", *argv, log=log)


def _client(places: Places) -> tuple[str, ...]:
    """Containerd's own command line, in the namespace where the kubelet looks for images."""
    return (f"{places.bin}/ctr", f"--address={places.socket}", "--namespace=k8s.io")


def _ctr(places: Places, *arguments: str) -> str:
    return call(*_client(places), *arguments)
