import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from failing import failing_at
from trees import tree

from ppojob_trainer import failpoints
from ppojob_trainer.errors import ConfigError, InjectedFault
from ppojob_trainer.retrieval import bm25, build, corpus, dense, manifest
from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.retrieval.encoder import encoder_settings
from ppojob_trainer.retrieval.manifest import check_memory, read_manifest

MODULES = (bm25, build, corpus, dense, manifest)  # their import declares the points
POINTS = [point for point in failpoints.all_points() if point.startswith("index.")]
SHARD_POINTS = [point for point in POINTS if point.startswith("index.shard.")]
FILE_POINTS = [
    *[point for point in POINTS if point not in SHARD_POINTS],
    *[f"{point}@{n}" for point in POINTS if point.startswith("index.file.") for n in (2, 3)],
]


def quiet(what: str, count: int) -> None:
    return None


def few_documents(write_corpus, count: int) -> Path:
    return write_corpus([{"id": f"{n}", "contents": f"{n % 7}\n{n}"} for n in range(count)])


# Of a file, writing and its fsync are other acts for the copy of the corpus and for the arrays.
@pytest.mark.parametrize("point", FILE_POINTS)
def test_an_index_by_words_goes_on(point: str, tmp_path: Path, write_corpus) -> None:
    lines = few_documents(write_corpus, 20)
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "index"
    build_index(lines, undisturbed, encoder=None, on_progress=quiet)
    # The copy is written as a stream.
    is_met = not (point.startswith("index.file.write") and point.endswith("@3"))
    with failing_at(point), pytest.raises(InjectedFault) if is_met else nullcontext():
        build_index(lines, folder, encoder=None, on_progress=quiet)
    if not (folder / "manifest.json").exists():
        with pytest.raises(ConfigError, match=r"got no manifest\.json"):
            read_manifest(folder)
        build_index(lines, folder, encoder=None, on_progress=quiet)
    assert tree(folder) == tree(undisturbed)


def test_an_index_by_vectors_goes_on(tmp_path: Path, write_corpus, encoder_folder: Path) -> None:
    lines = few_documents(write_corpus, dense.SHARD_DOCUMENTS + 40)
    settings = encoder_settings(encoder_folder)
    undisturbed, begun = tmp_path / "undisturbed", tmp_path / "begun"
    build_index(lines, undisturbed, encoder=settings, on_progress=quiet)
    assert {"vectors-00000.npy", "vectors-00001.npy"} <= set(tree(undisturbed))
    shutil.copytree(undisturbed, begun)
    for name in ("manifest.json", "vectors-00001.npy"):
        (begun / name).unlink()
    for point in SHARD_POINTS:
        folder = tmp_path / point
        shutil.copytree(begun, folder)
        first = (folder / "vectors-00000.npy").stat()
        with failing_at(point), pytest.raises(InjectedFault):
            build_index(lines, folder, encoder=settings, on_progress=quiet)
        build_index(lines, folder, encoder=settings, on_progress=quiet)
        assert tree(folder) == tree(undisturbed)
        after = (folder / "vectors-00000.npy").stat()
        assert (after.st_ino, after.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)


def test_progress_is_told(tmp_path: Path, write_corpus) -> None:
    told: list[tuple[str, int]] = []
    build_index(
        few_documents(write_corpus, 3),
        tmp_path / "i",
        encoder=None,
        on_progress=lambda what, count: told.append((what, count)),
    )
    expected = [(what, count) for what in ("read", "split into words") for count in (1, 2, 3)]
    assert told == expected


def test_memory_is_what_the_arrays_take_at_least(index_folder: Path) -> None:
    found = read_manifest(index_folder)
    arrays = sum(file.size_bytes for file in found.files if file.path.endswith(".npy"))
    assert found.memory_bytes > arrays - (index_folder / "offsets.npy").stat().st_size
    assert found.plan.documents == 60
    check_memory(found, index_folder)
