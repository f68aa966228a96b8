from pathlib import Path

import huggingface_hub
import pytest
from click.testing import CliRunner, Result

from ppojob_cli.hub_data import described, fetched
from ppojob_cli.main import main


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["model", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (source / name).write_text(name)
    return source


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_copied(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "models" / "one"
    result = call(folder, "--output", output)
    assert result.exit_code == 0
    assert result.stdout == f"{output}: 3 files, 0 MB\n"
    assert names(output) == names(folder)
    assert names(output.parent) == ["one"]


def refused(*arguments: str | Path) -> str:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip("\n").isprintable()
    return result.stderr


def test_an_empty_folder_is_filled_and_a_full_one_is_left(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "one"
    output.mkdir()
    assert call(folder, "--output", output).exit_code == 0
    assert refused(folder, "--output", output).startswith(
        f"--output: got {output}: it is not empty"
    )


def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    said = refused(folder, "--output", "/proc/x/y")
    assert said.startswith("--output: got /proc/x/y: /proc/x: No such file or directory")


def test_what_is_no_model(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").rename(folder / "model.bin")
    said = refused(folder, "--output", tmp_path / "one")
    assert said.startswith(f"{folder}: got no tokenizer.json and no *.safetensors: ")
    assert names(tmp_path) == ["source"]


@pytest.mark.parametrize("source", ["smollm3", "./a/b", "a/b/c", "", "a b/c", "\x1b[2J"])
def test_neither_folder_nor_hub_id(source: str, tmp_path: Path) -> None:
    assert "or <owner>/<name> on the hub" in refused(source, "--output", tmp_path / "one")
    assert names(tmp_path) == []


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    result = call("nobody/nothing", "--output", tmp_path / "one")
    assert result.exit_code == 2
    fetching, said = result.stderr.splitlines()
    assert fetching == "fetching nobody/nothing"
    assert said.startswith("nobody/nothing: got no answer ")
    assert said.isprintable()
    assert not (tmp_path / "one").exists()


def test_the_demo_never_overwrites(folder: Path) -> None:
    assert "it would be overwritten" in refused("smollm2", "--output", folder)
    assert names(folder) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose repositories have one file; its library leaves notes beside it."""

    def snapshot_download(hub_id: str, *, local_dir: Path, **_: object) -> None:
        notes = local_dir / ".cache" / "huggingface"
        notes.mkdir(parents=True)
        (notes / "a.jsonl.metadata").write_text("{}")
        (local_dir / "a.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


@pytest.mark.usefixtures("hub")
def test_of_a_data_set_only_the_files_are_left(tmp_path: Path) -> None:
    folder = fetched("owner/name", tmp_path, "*")
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]
    assert list(described(folder)) == [f"{folder / 'a.jsonl'}: 1 row of question, answer"]


@pytest.mark.usefixtures("hub")
def test_a_cache_that_was_there_stays(tmp_path: Path) -> None:
    """Somebody may fetch to his home, whose .cache holds more than the hub's notes."""
    kept = tmp_path / ".cache" / "mine"
    kept.parent.mkdir()
    kept.touch()
    fetched("owner/name", tmp_path, "*")
    assert kept.exists()
