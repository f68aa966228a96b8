"""What fetching a data set of the hub leaves in a folder."""

from pathlib import Path

import huggingface_hub
import pytest

from ppojob_cli.hub_data import described, fetched


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose repositories have one file; its library leaves notes beside it."""

    def snapshot_download(hub_id: str, *, local_dir: Path, **_: object) -> None:
        notes = local_dir / ".cache" / "huggingface"
        notes.mkdir(parents=True)
        (notes / "a.jsonl.metadata").write_text("{}")
        (local_dir / "a.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_only_the_files_are_left(tmp_path: Path) -> None:
    folder = fetched("owner/name", tmp_path, "*")
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]
    assert list(described(folder)) == [f"{folder / 'a.jsonl'}: 1 rows of question, answer"]


def test_a_cache_that_was_there_stays(tmp_path: Path) -> None:
    """Somebody may fetch to his home, whose .cache holds more than the hub's notes."""
    kept = tmp_path / ".cache" / "pip" / "wheel"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    fetched("owner/name", tmp_path, "*")
    assert kept.read_text() == "mine"
