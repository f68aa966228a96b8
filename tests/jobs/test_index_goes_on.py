import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import job_points
import pytest
import torch
from tiny_models import NAMES, save_tokenizer
from transformers import BertConfig, BertModel
from trees import tree

from ppojob_trainer.retrieval.http_retriever import HttpRetriever

pytestmark = pytest.mark.processes

DOCUMENTS = 5_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    lines = [
        {"id": f"{n}", "contents": f"T{n}\n{'abc'[n % 3] * (n % 90)}"} for n in range(DOCUMENTS)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    save_tokenizer(folder / "tiny-e5")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(NAMES), "hidden_size": 32, "intermediate_size": 32}
    config = BertConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=300
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "tiny-e5")
    return folder


def command(inputs: Path, output: Path) -> list[str]:
    made = [sys.executable, "-m", "ppojob_cli", "index", inputs / "corpus.jsonl"]
    options = ["--output", output, "--kind", "dense", "--encoder", inputs / "tiny-e5"]
    return [*map(str, made), *map(str, options)]


def make(inputs: Path, output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(inputs, output),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "index"
    done = make(inputs, folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith(f"{folder}: 5,000 documents, dense, ")
    return folder


def test_a_killed_index_is_the_undisturbed_one(inputs, undisturbed, tmp_path: Path) -> None:
    folder, once = tmp_path / "index", tmp_path / "once"
    points = ("index.shard.rename.before@2=kill", "index.manifest.rename.before=kill")
    armed = job_points.armed(once, *points)
    deaths = 0
    while make(inputs, folder, **armed).returncode == -signal.SIGKILL:
        deaths += 1
        assert not (folder / "manifest.json").exists()
    assert deaths == len(points)
    assert tree(folder) == tree(undisturbed)


@pytest.mark.long
def test_ctrl_c_keeps_what_is_done(inputs, undisturbed, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with subprocess.Popen(
        command(inputs, folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder / "vectors-00000.npy").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (130, f"{folder}: interrupted; the same command resumes\n")
    assert make(inputs, folder).returncode == 0
    assert tree(folder) == tree(undisturbed)


@pytest.fixture
def served(undisturbed: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = [sys.executable, "-m", "ppojob_cli", "retrieve", str(undisturbed), "--port", "0"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        yield process, process.stdout.readline().partition(": ")[0]
        if process.poll() is None:
            process.kill()


def test_it_is_served_until_ctrl_c(served) -> None:
    process, url = served
    with closing(HttpRetriever(url)) as client:
        together = client.search(["aaaa", "bb", "T17"], 3)
        assert together == [client.search([query], 3)[0] for query in ("aaaa", "bb", "T17")]
    assert [len(found) for found in together] == [3, 3, 3]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
