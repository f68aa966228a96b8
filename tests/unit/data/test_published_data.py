"""`ppojob data searchr1|dapo-math|aime|hf`: files in the columns of their publishers."""

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_cli.data import data
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.rewards.row_checks import RowChecks

QUESTIONS = [
    {"id": "train_0", "question": "who wrote it", "golden_answers": ["Ann", "Ann B."]},
    {"id": "train_1", "question": "where is it?", "golden_answers": ["Rome"]},
]
INSTRUCTED = [{"role": "user", "content": "Solve it.\n\n1 + 1?\n\nRemember."}]
VERLS = {
    "data_source": "math_dapo",
    "prompt": INSTRUCTED,
    "ability": "MATH",
    "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b"},
}


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(data, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_search_r1(ending: str, tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"{split}.{ending}", *QUESTIONS)
    assert run("searchr1", "--input", tmp_path, "--output", tmp_path / "out")[0] == 0
    first, second = read(tmp_path / "out" / "train.parquet")
    assert first["data_source"] == "searchR1_nq"
    assert first["reward_model"] == {"style": "rule", "ground_truth": {"target": ["Ann", "Ann B."]}}
    assert first["extra_info"] == {
        **{"split": "train", "index": 0, "id": "train_0"},
        "question": "who wrote it?",
    }
    (message,) = first["prompt"]
    assert message["content"].endswith("Question: who wrote it?")
    assert "<search>" not in message["content"]
    assert second["prompt"][0]["content"].endswith("Question: where is it?")


def test_search_r1_with_its_own_sources_and_a_search_engine(tmp_path: Path) -> None:
    rows = [{**QUESTIONS[0], "data_source": "hotpotqa"}, {**QUESTIONS[1], "data_source": "nq"}]
    for split in ("train", "test"):
        write(tmp_path / f"{split}.jsonl", *rows)
    command = ("searchr1", "--prompt-form", "search", "--input", tmp_path, "--output", tmp_path)
    assert run(*command)[0] == 0
    found = read(tmp_path / "test.parquet")
    assert [row["data_source"] for row in found] == ["searchR1_hotpotqa", "searchR1_nq"]
    assert "by <search> query </search> and it" in found[0]["prompt"][0]["content"]


def test_dapo_math_in_verls_columns_is_taken_as_it_is_and_once(tmp_path: Path) -> None:
    other = {**VERLS, "prompt": [{"role": "user", "content": "2 + 2?"}]}
    source = write(tmp_path / "dapo.parquet", VERLS, other, VERLS)
    assert run("dapo-math", "--input", source, "--output", tmp_path)[0] == 0
    first, second = read(tmp_path / "train.parquet")
    assert first["prompt"] == INSTRUCTED
    assert second["prompt"] == other["prompt"]
    assert first["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert first["extra_info"] == {"split": "train", "index": "9a9b"}
    assert not (tmp_path / "test.parquet").exists()


def test_dapo_math_as_text_gets_its_words(tmp_path: Path) -> None:
    row = {**VERLS, "prompt": "1 + 1?", "solution": "2"}
    source = write(tmp_path / "dapo.jsonl", row)
    assert run("dapo-math", "--input", source, "--output", tmp_path)[0] == 0
    ((message,),) = [row["prompt"] for row in read(tmp_path / "train.parquet")]
    assert message["content"].startswith("Solve the following math problem step by step. The last")
    assert message["content"].endswith('\n\n1 + 1?\n\nRemember to put your answer on its own line '
                                       'after "Answer:".')  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"ID": "2024-II-4", "Problem": "x?", "Solution": "Long.", "Answer": 33},
        {"id": 60, "problem": "x?", "solution": "Long.", "answer": "033", "url": "u"},
        {"question": "x?", "answer": "33"},
    ],
)
def test_aime_under_each_name_of_its_columns(row: dict[str, object], tmp_path: Path) -> None:
    source = write(tmp_path / "aime.jsonl", row, row)
    command = ("aime", "--data-source", "aime2024", "--input", source, "--output", tmp_path)
    assert run(*command)[0] == 0
    (found,) = read(tmp_path / "test.parquet")
    assert found["data_source"] == "aime2024"
    assert found["reward_model"]["ground_truth"] == "33"
    assert not (tmp_path / "train.parquet").exists()


@pytest.mark.processes
def test_what_is_made_passes_every_check(tmp_path: Path, chat: ChatTokenizer) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"{split}.jsonl", *QUESTIONS)
    aime = write(tmp_path / "in" / "aime.jsonl", {"problem": "x?", "answer": 7})
    assert run("searchr1", "--input", tmp_path, "--output", tmp_path / "a")[0] == 0
    assert run("dapo-math", "--input", aime, "--output", tmp_path / "b")[0] == 0
    assert run("aime", "--input", aime, "--output", tmp_path / "b")[0] == 0
    files = ("a/train.parquet", "a/test.parquet", "b/train.parquet", "b/test.parquet")
    train = [{"path": str(tmp_path / file)} for file in files]
    spec = DataSpec.model_validate({"train": train, "maxPromptTokens": 4_000})
    report = check_files(spec, chat, rewards=RowChecks(), draw=("promptsPerStep", 1))
    assert report.errors == []


WRONG = {
    "no answers": (
        "searchr1",
        {"question": "a", "golden_answers": []},
        "train.jsonl:1:golden_answers: got []: nothing to compare an answer with; a list of texts",
    ),
    "no question": (
        "searchr1",
        {"golden_answers": ["a"]},
        "train.jsonl:1:question: got None: not a problem of Search-R1; text",
    ),
    "no problem": (
        "dapo-math",
        {"text": "a", "answer": "1"},
        "train.jsonl:1: got columns text, answer: no problem with its answer; verl's prompt and "
        "reward_model.ground_truth, or a problem or question with its answer",
    ),
    "no answer": (
        "aime",
        {"problem": "a", "answer": " "},
        "train.jsonl:1: got columns problem, answer: no problem with its answer; verl's prompt and "
        "reward_model.ground_truth, or a problem or question with its answer",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none_of_it_is_named_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    command, row, expected = WRONG[name]
    source = write(tmp_path / "in" / "train.jsonl", row)
    write(tmp_path / "in" / "test.jsonl", row)
    given = source.parent if command == "searchr1" else source
    status, told = run(command, "--input", given, "--output", tmp_path / "out")
    assert (status, told) == (2, f"{source.parent}/{expected}\n")
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_data_source_that_is_not_aimes(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", {"problem": "x?", "answer": 7})
    command = ("aime", "--data-source", "mine", "--input", source, "--output", tmp_path)
    status, told = run(*command)
    assert status == 2
    assert told.startswith("--data-source: got mine: its reward is known by its beginning; ")


def test_files_of_a_folder_are_told(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-0.parquet", *QUESTIONS)
    write(tmp_path / "test.jsonl", *QUESTIONS[:1])
    (tmp_path / "bad.json").write_text("x")
    status, told = run("hf", tmp_path)
    assert status == 0
    assert told.splitlines() == [
        f"{tmp_path}/bad.json: not read: text that is not JSON: JSON is malformed: invalid"
        " character (byte 0)",
        f"{tmp_path}/data/train-0.parquet: 2 rows of id, question, golden_answers",
        f"{tmp_path}/test.jsonl: 1 rows of id, question, golden_answers",
    ]


def test_no_hub_id_no_output_and_no_files(tmp_path: Path) -> None:
    assert "it is no hub id; a folder, or" in run("hf", "nothing here")[1]
    assert run("hf", "owner/name")[1].startswith("--output: got nothing: owner/name is fetched")
    assert run("hf", tmp_path)[1].startswith(f"{tmp_path}: got no data file: ")


FILES = {"train.jsonl": json.dumps(QUESTIONS[0]).encode() + b"\n", "weights.bin": b"x"}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for; it has one repository."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        commit = "a" * 40
        name = self.path.rpartition("/")[2].partition("?")[0]
        if "/tree/" in self.path:
            files = [{"type": "file", "path": name, "size": 1, "oid": name} for name in FILES]
            body = json.dumps(files).encode()
        elif self.path.startswith("/api/datasets/owner/name"):
            told = [{"rfilename": name} for name in FILES]
            body = json.dumps({"id": "owner/name", "sha": commit, "siblings": told}).encode()
        elif self.path.startswith("/datasets/owner/name/resolve/") and name in FILES:
            body = FILES[name]
        else:
            body = b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{name}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.processes
def test_a_repository_is_fetched_without_what_is_no_data(hub: str, tmp_path: Path) -> None:
    call = functools.partial(
        subprocess.run,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
    )
    command = [sys.executable, "-m", "ppojob_cli", "data", "hf", "--output"]
    told = call([*command, str(tmp_path / "out"), "owner/name"])
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"{tmp_path}/out/train.jsonl: 1 rows of id, question, golden_answers\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.jsonl"]
    missing = call([*command, str(tmp_path / "other"), "owner/other"])
    assert missing.returncode == 2
    fetching, line = missing.stderr.splitlines()
    assert fetching == "fetching owner/other"
    assert line.startswith("owner/other: got no answer that helps from the hub: ")
    assert "hf download --repo-type dataset owner/other" in line
