"""Container images as files: an OCI layout made from one root file system, and its archive."""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write(folder: Path, root_file_system: Path, entrypoint: Sequence[str] = ()) -> None:
    """Make a layout of one image with one uncompressed layer, a tar file that is moved into it."""
    shutil.rmtree(folder, ignore_errors=True)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    with root_file_system.open("rb") as read:
        digest = hashlib.file_digest(read, "sha256").hexdigest()
    layer = {
        "mediaType": _LAYER,
        "digest": f"sha256:{digest}",
        "size": root_file_system.stat().st_size,
    }
    root_file_system.rename(blobs / digest)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint) or None, "Env": [_PATH]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        # A builder that adds layers counts them against this.
        "history": [{"created_by": "one root file system"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blob(json.dumps(config).encode(), _CONFIG),
        "layers": [layer],
    }
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), _MANIFEST)]}
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_text(json.dumps(index))


def archive(folder: Path, name: str, known: Collection[str], out: IO[bytes]) -> None:
    """Write a layout as a tar stream for containerd, without blobs whose digests are `known`."""
    index = json.loads((folder / "index.json").read_text())
    for manifest in index["manifests"]:
        manifest["annotations"] = {"io.containerd.image.name": name}
    with tarfile.open(fileobj=out, mode="w|") as tar:
        _add(tar, "oci-layout", (folder / "oci-layout").read_bytes())
        _add(tar, "index.json", json.dumps(index).encode())
        for blob in sorted((folder / "blobs" / "sha256").iterdir()):
            if f"sha256:{blob.name}" not in known:
                tar.add(blob, f"blobs/sha256/{blob.name}")


def keep_named(folder: Path) -> None:
    """Remove what no name points to any more: images that newer ones took the name from."""
    index = json.loads((folder / "index.json").read_text())
    index["manifests"] = [entry for entry in index["manifests"] if "annotations" in entry]
    (folder / "index.json").write_text(json.dumps(index))
    blobs = folder / "blobs" / "sha256"
    used: set[str] = set()
    for entry in index["manifests"]:
        manifest = json.loads((blobs / _file(entry)).read_text())
        used |= {_file(part) for part in (entry, manifest["config"], *manifest["layers"])}
    for blob in blobs.iterdir():
        if blob.name not in used:
            blob.unlink()


def share(folder: Path, blobs: Path) -> None:
    """Let a layout's blobs be files that another store has by their digests: no second copy."""
    for blob in (folder / "blobs" / "sha256").iterdir():
        other = blobs / blob.name
        if other.exists() and not other.samefile(blob):
            link = blob.with_suffix(".link")
            os.link(other, link)
            link.rename(blob)


def _file(described: Mapping[str, str]) -> str:
    return described["digest"].removeprefix("sha256:")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
