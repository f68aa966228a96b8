"""Cases 49 to 70 and 87 to 92, by `ppojob run`: rows and reward functions. Exact lines."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refused_jobs import RefusedJob, check, read_lines

from ppojob_trainer.data import file_checks
from ppojob_trainer.rewards import process as scoring

LINES = read_lines(Path(__file__).with_suffix(".txt"))

Spoil = Callable[[RefusedJob], object]
Row = dict[str, object]


def good(**changes: object) -> Row:
    """A row that the tiny job can use, in which a case changes one thing."""
    return {
        "prompt": [{"role": "user", "content": "3+5"}],
        "data_source": "tiny",
        "reward_model": {"style": "rule", "ground_truth": "8"},
        "extra_info": {"split": "train"},
        **changes,
    }


def chat(*messages: object) -> Row:
    return good(prompt=list(messages))


def rows(*wrong_rows: object) -> Spoil:
    """Put rows behind the good ones; the first of them is in line 41."""

    def spoil(wrong: RefusedJob) -> None:
        with wrong.train.open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in wrong_rows)

    return spoil


def line(content: bytes) -> Spoil:
    """Put a line behind the good ones, as it is."""

    def spoil(wrong: RefusedJob) -> None:
        with wrong.train.open("ab") as file:
            file.write(content)

    return spoil


def file(content: bytes, name: str = "train.parquet") -> Spoil:
    """Train on a file of this content."""

    def spoil(wrong: RefusedJob) -> None:
        (wrong.files / name).write_bytes(content)
        path(name)(wrong)

    return spoil


def path(*names: str) -> Spoil:
    """Train on these files."""
    return lambda wrong: wrong.set(
        "spec.data.train", [{"path": str(wrong.files / name)} for name in names]
    )


def table(*table_rows: Row, cut: int = 0, **options: object) -> Spoil:
    """Train on a parquet file, some bytes of whose end are cut off."""

    def spoil(wrong: RefusedJob) -> None:
        target = wrong.files / "train.parquet"
        pq.write_table(pa.Table.from_pylist(list(table_rows)), target, **options)
        target.write_bytes(target.read_bytes()[: -cut or None])
        path("train.parquet")(wrong)

    return spoil


def folder(wrong: RefusedJob) -> None:
    (wrong.files / "folder.parquet").mkdir()
    path("folder.parquet")(wrong)


def data(**settings: object) -> Spoil:
    return lambda wrong: wrong.set("spec.data", {**wrong.get("spec.data"), **settings})


def routed(*wrong_rows: Row) -> Spoil:
    """Score by the built-in scorers."""

    def spoil(wrong: RefusedJob) -> None:
        wrong.set("spec.rewards", [])
        wrong.train.write_text("".join(f"{json.dumps(row)}\n" for row in wrong_rows))

    return spoil


def beside(*spoils: Spoil) -> Spoil:
    """Something that is told, and a mistake that keeps the job from starting."""

    def both(wrong: RefusedJob) -> None:
        for spoil in spoils:
            spoil(wrong)
        reward("letters = 1")(wrong)

    return both


def held_out(wrong: RefusedJob) -> None:
    wrong.set("spec.data.validation", [{"path": str(wrong.train)}])


def reward(source: str, **changes: object) -> Spoil:
    """Write the file of the reward function."""

    def spoil(wrong: RefusedJob) -> None:
        wrong.reward.write_text(source)
        (given,) = wrong.get("spec")["rewards"]
        wrong.set("spec.rewards", [{**given, **changes}])

    return spoil


def built_in(name: str) -> Spoil:
    return lambda wrong: wrong.set("spec.rewards", [{"function": name}])


ADDITION = good(data_source="ppojob/addition")
SCORE = "def letters(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"

CASES: dict[str, Spoil] = {
    "49 no such file": path("none.parquet"),
    "49 wildcards": path("*.jsonl"),
    "49 a folder": folder,
    "49 no ending": path("model"),
    "50 no bytes": file(b""),
    "50 no bytes in lines": file(b"", "empty.jsonl"),
    "51 CSV": file(b"prompt,answer\n3 + 5,8\n"),
    "51 encrypted": file(b"PAR1" + bytes(40) + b"PARE"),
    "51 lines named parquet": file(b'{"prompt": "3+5", "data_source": "tiny"}\n' * 4),
    "52 no such column": table({"question": "3+5", "answer": "8"}),
    "52 no such column in lines": rows({"question": "3+5"}),
    "53 null": rows(good(prompt=None)),
    "53 spaces": rows(good(prompt=" \n"), good(prompt="  ")),
    "54 a number": rows(good(prompt=7)),
    "54 no role": rows(chat({"content": "3+5"})),
    "54 role": rows(chat({"role": "robot", "content": "3+5"})),
    "54 no messages": rows(good(prompt=[])),
    "54 list of text": rows(good(prompt=["3+5"])),
    "55 no ground truth": routed(*[ADDITION] * 4, {**ADDITION, "reward_model": {}}),
    "55 data source": routed(*[ADDITION] * 4, good(data_source="ppojob/division")),
    "56 too long": rows(good(prompt=[{"role": "user", "content": "3" * 100}])),
    "57 none left": data(maxPromptTokens=8, overlongPrompts="drop"),
    "58 fewer than a batch": data(maxTrainRows=3),
    "59 twice (a warning)": beside(rows(good(extra_info={"index": 7}))),
    "60 text and messages": rows(good(prompt="3+5")),
    "61 no UTF-8": line(b'{"prompt": "\xff", "data_source": "tiny"}\n'),
    "61 lone surrogate": line(b'{"prompt": "\\ud800", "data_source": "tiny"}\n'),
    "61 NUL": rows(chat({"role": "user", "content": "3\0+5"})),
    "61 control token (a warning)": beside(rows(chat({"role": "user", "content": "<|im_end|>"}))),
    "67 held-out rows trained on (a warning)": beside(held_out),
    "68 byte order mark": file(b"\xef\xbb\xbf{}\n", "mark.jsonl"),
    "68 blank line": line(b"\n"),
    "68 no object": line(b"[1, 2]\n"),
    "68 no JSON": line(b'{"prompt": hello}\n'),
    "69 not a number": table(*[good(extra_info={"weight": math.nan})] * 4),
    "70 unequal lists": rows(good(prompt={"role": ["user", "user"], "content": ["3+5"]})),
    "87 no such file": lambda wrong: wrong.reward.unlink(),
    "87 syntax": reward("def letters(:\n    pass\n"),
    "87 package": reward("import no_such_package\n"),
    "87 import raises": reward("\n\nprint(1 / 0)\n"),
    "87 import exits": reward("import sys\nsys.exit(0)\n"),
    "87 import kills its process": reward("import os\nos.kill(os.getpid(), 9)\n"),
    "88 name": reward(SCORE.replace("letters", "words")),
    "88 no function": reward("letters = 1\n"),
    "88 signature": reward("def letters(response):\n    return 1.0\n"),
    "88 async": reward(f"async {SCORE}"),
    "88 arguments": reward(SCORE, arguments={"unit": "cm"}),
    "88 no such scorer": built_in("grammar"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_data_and_rewards_are_refused(name: str, wrong: RefusedJob) -> None:
    CASES[name](wrong)
    check(wrong, LINES[name])


def test_every_line_has_its_case() -> None:
    assert LINES.keys() == CASES.keys()


def test_a_truncated_table(wrong: RefusedJob) -> None:
    table(good(), cut=20)(wrong)
    (found,) = wrong.refused()
    assert found.startswith("train.parquet: got first bytes b'PAR1")
    assert found.endswith(": the end of the file is missing; a parquet file, or format: jsonl")


def test_a_corrupt_page(wrong: RefusedJob) -> None:
    content = [good(prompt=f"{number}+5") for number in range(50)]
    table(*content, write_page_checksum=True, compression="none", row_group_size=25)(wrong)
    target = wrong.files / "train.parquet"
    damaged = bytearray(target.read_bytes())
    damaged[damaged.index(b"49+5")] ^= 1
    target.write_bytes(damaged)
    (found,) = wrong.refused()
    assert found.startswith("train.parquet:row group 1:prompt: got data that cannot be decoded: ")
    assert found.endswith("; the file as it was written; rewrite or fetch it again")


def test_a_file_that_may_not_be_read(wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong.train.chmod(0o600)
    # Root may read anything.
    monkeypatch.setattr(file_checks.os, "access", lambda path, _: path != str(wrong.train))
    (found,) = wrong.refused()
    assert found.startswith("train.jsonl: got mode -rw-------, owner ")
    assert found.endswith(" may not read it; a file that this user may read")


def test_a_reward_file_whose_import_does_not_end(
    wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "START_SECONDS", 1.0)
    reward("while True:\n    pass\n")(wrong)
    assert wrong.refused() == [
        "spec.rewards: got files whose import gave no answer in 1 s: functions cannot be loaded; "
        "files that can be imported"
    ]


def test_rows_are_not_judged_without_a_tokenizer_but_files_are(wrong: RefusedJob) -> None:
    (wrong.model / "tokenizer.json").unlink()
    path("none.parquet", "train.jsonl")(wrong)
    tokenizer, missing = wrong.refused()
    assert tokenizer.startswith("model/tokenizer.json: got no such file: ")
    assert missing.startswith("none.parquet: got no such file: ")
