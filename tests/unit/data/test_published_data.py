"""`ppojob data gsm8k|math|searchr1|dapo-math|aime|hf`: files in the columns of their publishers."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from prompt_files import PromptFiles

from ppojob_cli.main import main
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.metrics.page_server import PageServer
from ppojob_trainer.rewards.row_checks import RowChecks

Row = dict[str, Any]
QUESTIONS: list[Row] = [
    {"id": "train_0", "question": "who wrote it", "golden_answers": ["Ann", "Ann B."]},
    {"id": "train_1", "question": "where is it?", "golden_answers": ["Rome"]},
]
INSTRUCTED = [{"role": "user", "content": "Solve it.\n\n1 + 1?\n\nRemember."}]
VERLS: Row = {
    "data_source": "math_dapo",
    "prompt": INSTRUCTED,
    "ability": "MATH",
    "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b"},
}
# Made up here, in the form of the data set.
PROBLEMS: list[Row] = [
    {"question": "Ann has 2 pens and buys 3.", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"},
    {"question": "A box holds 1,000 nails. 4 boxes?", "answer": "4 * 1000\n#### 4,000"},
    {"question": "It was 3 degrees, then 5 less.", "answer": "3 - 5\n#### -2"},
]
SAY_NUMBER = 'Let\'s think step by step and output the final answer after "####".'
SOLUTIONS: list[Row] = [
    {"problem": "One half?", "level": "Level 5", "solution": r"So $\boxed{\frac{1}{2}}$."},
    {"problem": "Two?", "level": "Level 5", "solution": r"First \boxed{1}, then \boxed{2}"},
    {"problem": "Three?", "level": "Level 5", "solution": r"\boxed 3$."},
]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["data", *map(str, arguments)])
    return result.exit_code, result.output


def write(path: Path, *rows: Row) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def converted(
    folder: Path, command: str, *rows: Row, ending: str = ".jsonl", options: tuple[str, ...] = ()
) -> tuple[int, str, list[Row]]:
    """Status, output and rows of a command that reads both splits, or one file."""
    source, output = folder / "in", folder / "out"
    for split in ("train", "test"):
        path = write(source / f"{split}{ending}", *rows)
    given = path if command in ("dapo-math", "aime") else source
    status, told = run(command, "--input", given, "--output", output, *options)
    written = sorted(output.glob("*.parquet"))
    splits = {"dapo-math": ["train"], "aime": ["test"]}.get(command, ["test", "train"])
    assert [path.stem for path in written] == (splits if status == 0 else [])
    return status, told, pq.read_table(written[0]).to_pylist() if written else []


def user(content: str) -> list[Row]:
    return [{"role": "user", "content": content}]


FIRST_ROWS: dict[str, tuple[list[Row], Row, list[object]]] = {
    "gsm8k": (
        PROBLEMS,
        {
            "data_source": "openai/gsm8k",
            "prompt": user(f"{PROBLEMS[0]['question']} {SAY_NUMBER}"),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {"split": "test", "index": 0, **PROBLEMS[0]},
        },
        ["5", "4000", "-2"],
    ),
    "math": (
        SOLUTIONS,
        {
            "data_source": "DigitalLearningGmbH/MATH-lighteval",
            "prompt": user(
                r"One half? Let's think step by step and output the final answer within \boxed{}."
            ),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": r"\frac{1}{2}"},
            "extra_info": {"split": "test", "index": 0},
        },
        [r"\frac{1}{2}", "2", "3"],
    ),
    "searchr1": (
        QUESTIONS,
        {
            "data_source": "searchR1_nq",
            "prompt": user(
                "Answer the given question. Reason inside <think> and </think> first, and then "
                "give the answer inside <answer> and </answer>, without detailed illustrations. "
                "For example, <answer> Beijing </answer>. Question: who wrote it?"
            ),
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann", "Ann B."]}},
            "extra_info": {
                **{"split": "test", "index": 0, "id": "train_0"},
                "question": "who wrote it?",
            },
        },
        [{"target": ["Ann", "Ann B."]}, {"target": ["Rome"]}],
    ),
    "dapo-math": (
        [VERLS, {**VERLS, "prompt": user("2 + 2?")}, VERLS],
        {
            **VERLS,
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train", "index": "9a9b"},
        },
        ["2", "2"],
    ),
}


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", "-00000-of-00001.parquet"])
@pytest.mark.parametrize("command", FIRST_ROWS)
def test_rows_have_verls_columns_and_words(command: str, ending: str, tmp_path: Path) -> None:
    rows, expected, truths = FIRST_ROWS[command]
    status, told, found = converted(tmp_path, command, *rows, ending=ending)
    assert status == 0, told
    assert found[0] == expected
    assert [row["reward_model"]["ground_truth"] for row in found] == truths


def test_search_r1_with_its_own_sources_and_a_search_engine(tmp_path: Path) -> None:
    rows = [{**QUESTIONS[0], "data_source": "hotpotqa"}, {**QUESTIONS[1], "data_source": "nq"}]
    found = converted(tmp_path, "searchr1", *rows, options=("--prompt-form", "search"))[2]
    assert [row["data_source"] for row in found] == ["searchR1_hotpotqa", "searchR1_nq"]
    assert "by <search> query </search> and it" in found[0]["prompt"][0]["content"]


def test_gsm8k_with_its_user(tmp_path: Path) -> None:
    (row,) = converted(tmp_path, "gsm8k", PROBLEMS[1], options=("--with-user",))[2]
    query = f"{PROBLEMS[1]['question']} {SAY_NUMBER}"
    expected = {"name": "gsm8k", "query": query, "ground_truth": "4000"}
    assert row["extra_info"]["interaction_kwargs"] == expected


def test_dapo_math_as_text_gets_its_words(tmp_path: Path) -> None:
    row = {**VERLS, "prompt": "1 + 1?", "solution": "2"}
    ((message,),) = [row["prompt"] for row in converted(tmp_path, "dapo-math", row)[2]]
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
def test_aime_under_each_name_of_its_columns(row: Row, tmp_path: Path) -> None:
    (found,) = converted(tmp_path, "aime", row, row, options=("--data-source", "aime2024"))[2]
    assert found["data_source"] == "aime2024"
    assert found["reward_model"]["ground_truth"] == "33"


@pytest.mark.processes
@pytest.mark.parametrize("command", [*FIRST_ROWS, "aime"])
def test_what_is_made_passes_every_check(command: str, files: PromptFiles) -> None:
    rows = FIRST_ROWS.get(command, ([{"problem": "x?", "answer": 7}],))[0]
    assert converted(files.folder, command, *rows)[0] == 0
    spec = files.spec(f"{files.folder}/out/", maxPromptTokens=4_000)
    report = check_files(spec, files.chat, rewards=RowChecks(), draw=("promptsPerStep", 1))
    assert report.errors == []


NO_PROBLEM = (
    "no problem with its answer; verl's prompt and reward_model.ground_truth, or a problem or "
    "question with its answer"
)
NO_BOX = "no answer in it; a solution with \\boxed{...}"
WRONG = [
    (
        "searchr1",
        {"question": "a", "golden_answers": []},
        ":golden_answers: got []: no known answers; a list of texts",
    ),
    (
        "searchr1",
        {"golden_answers": ["a"]},
        ":question: got None: not a problem of Search-R1; text",
    ),
    ("dapo-math", {"text": "a", "answer": "1"}, f": got columns text, answer: {NO_PROBLEM}"),
    ("aime", {"problem": "a", "answer": " "}, f": got columns problem, answer: {NO_PROBLEM}"),
    (
        "gsm8k",
        {"question": "a", "answer": "5"},
        ":answer: got '5': no solution at the end; an answer that ends in \"#### 72\"",
    ),
    (
        "gsm8k",
        {"question": "", "answer": "#### 5"},
        ":question: got '': not a problem of GSM8K; text",
    ),
    ("gsm8k", {"question": "a"}, ":answer: got None: not a problem of GSM8K; text"),
    *(
        ("math", {"problem": "a", "solution": solution}, f":solution: got {solution!r}: {NO_BOX}")
        for solution in ("2", r"\boxed{2", r"\boxed{}", r"\boxed{ }")
    ),
]


@pytest.mark.parametrize(("command", "row", "expected"), WRONG)
def test_what_is_none_of_it_is_named_and_nothing_is_written(command, row, expected, tmp_path):
    good = FIRST_ROWS.get(command, ([{"problem": "x?", "answer": 7}],))[0][0]
    status, told, found = converted(tmp_path, command, good, row)
    split = "test" if command in ("dapo-math", "aime") else "train"
    assert (status, told, found) == (2, f"{tmp_path}/in/{split}.jsonl:2{expected}\n", [])


def test_a_data_source_that_is_not_aimes(tmp_path: Path) -> None:
    row, options = {"problem": "x?", "answer": 7}, ("--data-source", "mine")
    status, told, _ = converted(tmp_path, "aime", row, options=options)
    assert status == 2
    assert told.startswith("--data-source: got mine: its scorer is chosen by its prefix; ")


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
        f"{tmp_path}/test.jsonl: 1 row of id, question, golden_answers",
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
    with closing(PageServer("127.0.0.1", 0, Hub)) as server:
        server.start()
        yield f"http://127.0.0.1:{server.port}"


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
    assert told.stdout == f"{tmp_path}/out/train.jsonl: 1 row of id, question, golden_answers\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.jsonl"]
    missing = call([*command, str(tmp_path / "other"), "owner/other"])
    assert missing.returncode == 2
    fetching, line = missing.stderr.splitlines()
    assert fetching == "fetching owner/other"
    assert line.startswith("owner/other: got no answer that helps from the hub: ")
    assert "hf download --repo-type dataset owner/other" in line
