"""The parts of the cluster tool that need no cluster: what is built anew, and images as files."""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_access import REPOSITORY

TOOL = REPOSITORY / "tests" / "cluster" / "tool"


@pytest.fixture(autouse=True)
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tool's modules, importable as the tool itself imports them, until the test ends."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(TOOL)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(TOOL)):
            del sys.modules[name]


def image(folder: Path, content: bytes) -> Path:
    """A layout of one image whose root file system holds one file."""
    import layout

    root_file_system = folder / "root.tar"
    with tarfile.open(root_file_system, "w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    layout.write(folder / "image", root_file_system, ["/file"])
    return folder / "image"


def archived(made: Path, known: set[str]) -> dict[str, bytes]:
    import layout

    out = io.BytesIO()
    layout.archive(made, "localhost/named:dev", known, out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def test_an_archive_holds_what_its_index_names(tmp_path: Path) -> None:
    files = archived(image(tmp_path, b"content"), known=set())
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "localhost/named:dev"}

    def blob(described: dict[str, object]) -> bytes:
        algorithm, digest = str(described["digest"]).split(":")
        content = files[f"blobs/{algorithm}/{digest}"]
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) == described["size"]
        return content

    manifest = json.loads(blob(entry))
    assert json.loads(blob(manifest["config"]))["config"]["Entrypoint"] == ["/file"]
    with tarfile.open(fileobj=io.BytesIO(blob(manifest["layers"][0]))) as layer:
        assert layer.getnames() == ["file"]


def test_an_archive_leaves_out_what_the_reader_has(tmp_path: Path) -> None:
    made = image(tmp_path, b"content")
    everything = archived(made, known=set())
    (layer,) = (name for name, content in everything.items() if b"content" in content[:2000])
    rest = archived(made, known={"sha256:" + layer.rsplit("/", 1)[1]})
    assert set(everything) - set(rest) == {layer}


def test_a_layout_keeps_only_what_still_has_a_name(tmp_path: Path) -> None:
    import layout

    for folder, content in (("old", b"one"), ("new", b"two")):
        (tmp_path / folder).mkdir()
        image(tmp_path / folder, content)
    old, new = tmp_path / "old" / "image", tmp_path / "new" / "image"
    kept = {blob.name for blob in (new / "blobs" / "sha256").iterdir()}
    for blob in (old / "blobs" / "sha256").iterdir():
        blob.rename(new / "blobs" / "sha256" / blob.name)
    index = json.loads((new / "index.json").read_text())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "dev"}
    index["manifests"] += json.loads((old / "index.json").read_text())["manifests"]
    (new / "index.json").write_text(json.dumps(index))

    layout.keep_named(new)

    assert {blob.name for blob in (new / "blobs" / "sha256").iterdir()} == kept
    assert len(json.loads((new / "index.json").read_text())["manifests"]) == 1


def test_a_layout_shares_what_the_node_holds(tmp_path: Path) -> None:
    import layout

    made = image(tmp_path, b"content")
    before = archived(made, known=set())
    store = tmp_path / "store"
    store.mkdir()
    blobs = sorted((made / "blobs" / "sha256").iterdir())
    for blob in blobs[1:]:
        (store / blob.name).write_bytes(blob.read_bytes())

    layout.share(made, store)

    assert archived(made, known=set()) == before
    assert [blob.stat().st_nlink for blob in blobs] == [1] + [2] * len(blobs[1:])


def test_a_program_is_known_by_its_locks_and_flags() -> None:
    import programs

    keys = [program.key() for program in programs.PROGRAMS]
    assert len(set(keys)) == len(keys)
    assert keys == [program.key() for program in programs.PROGRAMS]
    assert programs.Program("runc", tags="seccomp").key() != programs.Program("runc").key()


def test_without_go_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import programs
    from machine import ClusterError
    from places import Places

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"^no go on PATH: .*install Go"):
        programs.build(Places(tmp_path))


def test_every_kubernetes_module_has_the_minor_of_the_others() -> None:
    lines = (TOOL / "programs" / "kubernetes" / "go.mod").read_text().splitlines()
    (version,) = (line.split()[-1] for line in lines if "k8s.io/kubernetes v" in line)
    replaced = {line.split()[-1] for line in lines if " => " in line}
    assert replaced == {version.replace("v1.", "v0.")}


def test_the_plan_stays_inside_its_folder_and_its_addresses(tmp_path: Path) -> None:
    import ipaddress

    import plan
    from places import Places

    assert plan.make(Places(tmp_path)) == plan.make(Places(tmp_path))
    for path, text in plan.make(Places(tmp_path)).files.items():
        assert Path(path).is_relative_to(tmp_path / "node")
        assert "$(" not in text, "a value that nobody gave"
    tests = ipaddress.ip_network("198.18.0.0/15")
    link = ipaddress.ip_network(f"{plan.HOST_ADDRESS}/{plan.LINK_PREFIX}", strict=False)
    ranges = [link, *map(ipaddress.ip_network, (plan.POD_RANGE, plan.SERVICE_RANGE))]
    assert all(each.subnet_of(tests) for each in ranges)  # type: ignore[arg-type]
    assert not any(a.overlaps(b) for a in ranges for b in ranges if a is not b)
