"""What `ppojob index` and `ppojob retrieve` refuse: word for word in bad_indices.txt."""

import gzip
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_lines import assert_lines, read_lines
from safetensors.numpy import load_file, save_file

from ppojob_cli.main import main

EXPECTED = read_lines(Path(__file__).parent / "bad_indices.txt")
GOOD = '{"id": "1", "contents": "T\\ntext"}\n'

Command = list[str]
Act = Callable[[], object]
INDEX = ["index", "corpus.jsonl", "--output", "index"]
DENSE = [*INDEX, "--kind", "dense", "--encoder", "tiny-e5"]
RETRIEVE = ["retrieve", "index"]
MANIFEST = Path("index/manifest.json")
WEIGHTS = Path("tiny-e5/model.safetensors")


def run(command: Command) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, command)
    return result.exit_code, result.stderr.splitlines()  # progress is told beside it


def made(command: Command = INDEX, lines: int = 3) -> Act:
    def make() -> None:
        Path("corpus.jsonl").write_text("".join(GOOD.replace("1", str(n)) for n in range(lines)))
        status, told = run(command)
        assert status == 0, told

    return make


def corpus(text: str) -> Act:
    return lambda: Path("corpus.jsonl").write_text(text)


def cut(path: str, size: int) -> Act:
    return lambda: os.truncate(path, size)


def cut_gzip() -> None:
    lines = "".join(GOOD.replace("1", str(n * n)) for n in range(999))
    Path("corpus.jsonl").write_bytes(gzip.compress(lines.encode())[:-20])


def changed(**values: object) -> Act:
    """Change entries of a manifest; those of its plan by `plan_<name>`."""

    def change() -> None:
        manifest = json.loads(MANIFEST.read_text())
        for name, value in values.items():
            inner = manifest["plan"] if name.startswith("plan_") else manifest
            inner[name.removeprefix("plan_")] = value
        MANIFEST.write_text(json.dumps(manifest))

    return change


def without_a_tensor() -> None:
    weights = load_file(WEIGHTS)
    weights.popitem()
    save_file(weights, WEIGHTS, metadata={"format": "pt"})


def doubled() -> None:
    save_file({name: 2 * value for name, value in load_file(WEIGHTS).items()}, WEIGHTS)


def another_text() -> None:
    path = Path("index/passages.jsonl")
    path.write_text(path.read_text().replace("text", "next"))


# What is done before, and the command that is refused then.
CASES: dict[str, tuple[list[Act], Command]] = {
    "line without id": ([corpus(GOOD + '{"contents": "T\\ntext"}\n')], INDEX),
    "line that is no JSON": ([corpus("{'id': '1'}\n" + GOOD + "\n")], INDEX),
    "id that is a number": ([corpus('{"id": 1, "contents": "T"}\n')], INDEX),
    "empty contents": ([corpus('{"id": "1", "contents": " "}\n')], INDEX),
    "id twice": ([corpus("".join(GOOD.replace("1", name) for name in "aba"))], INDEX),
    "empty corpus": ([corpus("")], INDEX),
    "corpus without words": ([corpus('{"id": "1", "contents": "--"}\n')], INDEX),
    "no corpus": ([], INDEX),
    "gzip that is cut": ([cut_gzip], INDEX),
    "folder of something else": (
        [corpus(GOOD), Path("index").mkdir, Path("index/notes.txt").touch],
        INDEX,
    ),
    "index that is there already": ([made()], INDEX),
    "another index was begun": (
        [made(), MANIFEST.unlink, corpus(GOOD + GOOD.replace("1", "2"))],
        INDEX,
    ),
    "dense without encoder": ([corpus(GOOD)], [*INDEX, "--kind", "dense"]),
    "encoder for words": ([corpus(GOOD)], [*INDEX, "--encoder", "tiny-e5"]),
    "encoder folder missing": ([corpus(GOOD)], [*INDEX, "--kind", "dense", "--encoder", "nowhere"]),
    "encoder folder without weights": ([corpus(GOOD), WEIGHTS.unlink], DENSE),
    "encoder without a tensor": ([corpus(GOOD), without_a_tensor], DENSE),
    "encoder of an unknown kind": (
        [corpus(GOOD), lambda: Path("tiny-e5/config.json").write_text('{"model_type": "nothing"}')],
        DENSE,
    ),
    "no index": ([Path("index").mkdir], RETRIEVE),
    "index of another version": ([made(), changed(version=2, surprise=True)], RETRIEVE),
    "manifest that is cut": ([made(), cut("index/manifest.json", 100)], RETRIEVE),
    "file that is cut": ([made(lines=100), cut("index/bm25/data.csc.index.npy", 200)], RETRIEVE),
    "file that was changed": ([made(), another_text], RETRIEVE),
    "file that is missing": ([made(), Path("index/offsets.npy").unlink], RETRIEVE),
    "index of another release of its library": (
        [made(), changed(plan_library="bm25s 0.2.14")],
        RETRIEVE,
    ),
    # Nothing is read before it is known to fit.
    "index that does not fit": (
        [made(), changed(memory_bytes=4096 * 2**30), lambda: shutil.rmtree("index/bm25")],
        RETRIEVE,
    ),
    "encoder of a dense index is gone": ([made(DENSE), lambda: shutil.rmtree("tiny-e5")], RETRIEVE),
    "another encoder": ([made(DENSE), doubled], RETRIEVE),
    "port that is taken": ([made()], [*RETRIEVE, "--port", "TAKEN"]),
}


@pytest.mark.parametrize("name", CASES | EXPECTED)
def test_bad_index(name: str, tmp_path: Path, encoder_folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    acts, command = CASES[name]
    for act in acts:
        act()
    before = sorted(Path().rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, told = run([word.replace("TAKEN", port) for word in command])
    assert status == 2
    assert_lines(told, EXPECTED[name])
    if command == RETRIEVE:
        assert sorted(Path().rglob("*")) == before
