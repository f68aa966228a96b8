"""What `ppojob index` and `ppojob retrieve` refuse: word for word in bad_indices.txt."""

import gzip
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_lines import assert_lines, read_lines
from safetensors.numpy import load_file, save_file

from ppojob_cli import search

EXPECTED = read_lines(Path(__file__).parent / "bad_indices.txt")
GOOD = '{"id": "1", "contents": "T\\ntext"}\n'

Command = list[str]
CASES: dict[str, Callable[[], Command]] = {}
INDEX = ["index", "corpus.jsonl", "--output", "index"]
DENSE = [*INDEX, "--kind", "dense", "--encoder", "tiny-e5"]
RETRIEVE = ["retrieve", "index"]


def case(name: str) -> Callable[[Callable[[], Command]], Callable[[], Command]]:
    def keep(prepare: Callable[[], Command]) -> Callable[[], Command]:
        CASES[name] = prepare
        return prepare

    return keep


def corpus(text: str) -> Callable[[], Command]:
    def prepare() -> Command:
        Path("corpus.jsonl").write_text(text)
        return INDEX

    return prepare


CASES |= {
    "line without id": corpus(GOOD + '{"contents": "T\\ntext"}\n'),
    "line that is no JSON": corpus("{'id': '1'}\n" + GOOD + "\n"),
    "id that is a number": corpus('{"id": 1, "contents": "T"}\n'),
    "empty contents": corpus('{"id": "1", "contents": " "}\n'),
    "id twice": corpus("".join(GOOD.replace("1", name) for name in "aba")),
    "empty corpus": corpus(""),
    "corpus without words": corpus('{"id": "1", "contents": "--"}\n'),
    "no corpus": lambda: INDEX,
}


@case("gzip that is cut")
def _() -> Command:
    lines = "".join(GOOD.replace("1", str(n * n)) for n in range(999))
    Path("corpus.jsonl").write_bytes(gzip.compress(lines.encode())[:-20])
    return INDEX


@case("folder of something else")
def _() -> Command:
    Path("index").mkdir()
    Path("index/notes.txt").touch()
    return corpus(GOOD)()


@case("index that is there already")
def _() -> Command:
    make(INDEX)
    return INDEX


@case("another index was begun")
def _() -> Command:
    make(INDEX)
    Path("index/manifest.json").unlink()
    return corpus(GOOD * 1 + GOOD.replace("1", "2"))()


@case("dense without encoder")
def _() -> Command:
    return [*corpus(GOOD)(), "--kind", "dense"]


@case("encoder for words")
def _() -> Command:
    return [*corpus(GOOD)(), "--encoder", "tiny-e5"]


@case("encoder folder missing")
def _() -> Command:
    return [*corpus(GOOD)(), "--kind", "dense", "--encoder", "nowhere"]


@case("encoder folder without weights")
def _() -> Command:
    corpus(GOOD)()
    Path("tiny-e5/model.safetensors").unlink()
    return DENSE


@case("encoder without a tensor")
def _() -> Command:
    corpus(GOOD)()
    weights = load_file("tiny-e5/model.safetensors")
    weights.popitem()
    save_file(weights, "tiny-e5/model.safetensors", metadata={"format": "pt"})
    return DENSE


@case("encoder of an unknown kind")
def _() -> Command:
    corpus(GOOD)()
    Path("tiny-e5/config.json").write_text('{"model_type": "nothing"}')
    return DENSE


@case("no index")
def _() -> Command:
    Path("index").mkdir()
    return RETRIEVE


@case("index of another version")
def _() -> Command:
    change_manifest(lambda manifest: manifest.update(version=2, surprise=True))
    return RETRIEVE


@case("manifest that is cut")
def _() -> Command:
    make(INDEX)
    path = Path("index/manifest.json")
    path.write_bytes(path.read_bytes()[:100])
    return RETRIEVE


@case("file that is cut")
def _() -> Command:
    make(INDEX, lines=100)
    path = Path("index/bm25/data.csc.index.npy")
    path.write_bytes(path.read_bytes()[:200])
    return RETRIEVE


@case("file that was changed")
def _() -> Command:
    make(INDEX)
    path = Path("index/passages.jsonl")
    path.write_text(path.read_text().replace("text", "next"))
    return RETRIEVE


@case("file that is missing")
def _() -> Command:
    make(INDEX)
    Path("index/offsets.npy").unlink()
    return RETRIEVE


@case("index of another release of its library")
def _() -> Command:
    change_manifest(lambda manifest: manifest["plan"].update(library="bm25s 0.2.14"))
    return RETRIEVE


@case("index that does not fit")
def _() -> Command:
    change_manifest(lambda manifest: manifest.update(memory_bytes=4096 * 2**30))
    shutil.rmtree("index/bm25")  # nothing is read before it is known to fit
    return RETRIEVE


@case("encoder of a dense index is gone")
def _() -> Command:
    make(DENSE)
    shutil.rmtree("tiny-e5")
    return RETRIEVE


@case("another encoder")
def _() -> Command:
    make(DENSE)
    weights = load_file("tiny-e5/model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, "tiny-e5/model.safetensors")
    return RETRIEVE


@case("port that is taken")
def _() -> Command:
    make(INDEX)
    return [*RETRIEVE, "--port", str(TAKEN.getsockname()[1])]


TAKEN = socket.socket()


def make(command: Command, lines: int = 3) -> None:
    Path("corpus.jsonl").write_text("".join(GOOD.replace("1", str(n)) for n in range(lines)))
    status, told = run(command)
    assert status == 0, told


def change_manifest(change: Callable[[dict], None]) -> None:
    make(INDEX)
    path = Path("index/manifest.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def run(command: Command) -> tuple[int, list[str]]:
    name, *arguments = command
    result = CliRunner().invoke(getattr(search, name), arguments)
    return result.exit_code, result.stderr.splitlines()  # progress is told beside it


@pytest.fixture(autouse=True, scope="module")
def _taken():
    TAKEN.bind(("127.0.0.1", 0))
    TAKEN.listen()
    yield
    TAKEN.close()


@pytest.mark.parametrize("name", EXPECTED)
def test_bad_index(name: str, tmp_path: Path, encoder_folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = CASES[name]()
    before = sorted(Path().rglob("*"))
    status, told = run(command)
    assert status == 2
    assert_lines(told, EXPECTED[name])
    if command == RETRIEVE:
        assert sorted(Path().rglob("*")) == before


def test_every_case_is_expected() -> None:
    assert set(CASES) == set(EXPECTED)
