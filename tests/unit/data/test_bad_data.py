"""Cases 49 to 70 of the bad-input catalogue: one exact line each."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data import file_checks, json_lines
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import changed_files, check_files
from ppojob_trainer.data.problems import LISTED_PROBLEMS

MakeSpec = Callable[..., DataSpec]
GoodRow = Callable[..., dict[str, object]]
Check = Callable[..., list[str]]


class Checks:
    """Stands for the reward side: knows sums only."""

    def data_source_problem(self, data_source: str) -> str | None:
        return None if data_source == "ppojob/addition" else "one of ppojob/addition"

    def ground_truth_problem(self, data_source: str, ground_truth: object) -> str | None:
        return None if isinstance(ground_truth, str) else 'the sum as text, such as "12"'


@pytest.fixture
def errors(chat: ChatTokenizer, make_spec: MakeSpec) -> Check:
    def check(*paths: Path, batch: int = 1, root: Path | None = None, **more: object) -> list[str]:
        spec = make_spec(*paths, **more)
        report = check_files(spec, chat, rewards=Checks(), prompts_per_step=batch, root=root)
        assert not any("Traceback" in line or "\n" in line for line in report.errors)
        return [line.replace(f"{paths[0].parent}/", "") for line in report.errors]

    return check


@pytest.fixture
def warnings(chat: ChatTokenizer, make_spec: MakeSpec) -> Check:
    def check(*paths: Path, validation: tuple[Path, ...] = ()) -> list[str]:
        held_out = [{"path": str(path)} for path in validation]
        spec = make_spec(*paths, validation=held_out)
        report = check_files(spec, chat, rewards=Checks(), prompts_per_step=1)
        assert report.errors == []
        return [line.replace(f"{paths[0].parent}/", "") for line in report.warnings]

    return check


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_table(path: Path, rows: list[dict[str, object]], **options: object) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def test_good_files_have_no_problem(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    assert errors(write_table(tmp_path / "a.parquet", [good_row()])) == []
    assert errors(write_lines(tmp_path / "a.jsonl", good_row())) == []


# 49, 50, 66: files


def test_paths_that_are_no_files(tmp_path: Path, errors: Check) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "folder").mkdir()
    names = ("none.parquet", "*.parquet", "folder", "empty.jsonl", "empty.parquet")
    looked = f"looked for as uid {os.getuid()} in {Path.cwd()}"
    assert errors(*(tmp_path / name for name in names)) == [
        f"none.parquet: got no such file: {looked}; a parquet or JSON-lines file; wildcards are "
        "not expanded",
        f"*.parquet: got no such file: {looked}; a parquet or JSON-lines file; wildcards are not "
        "expanded",
        "folder: got a folder: rows are read from files; one file each",
        "empty.jsonl: got 0 bytes: there are no rows in it; at least one row",
        "empty.parquet: got 0 bytes: there are no rows in it; at least one row",
    ]


def test_a_table_without_rows(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    table = pa.Table.from_pylist([good_row()])
    pq.write_table(table.slice(0, 0), tmp_path / "a.parquet")
    (line,) = errors(tmp_path / "a.parquet")
    assert line.startswith("a.parquet: got 0 rows in ")
    assert line.endswith(" row groups: there is nothing to draw from; at least one row")


def test_a_file_that_may_not_be_read(
    tmp_path: Path, good_row: GoodRow, errors: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row())
    path.chmod(0o600)
    monkeypatch.setattr(file_checks.os, "access", lambda *_: False)  # root may read anything
    owner = path.stat()
    assert errors(path) == [
        f"a.jsonl: got mode -rw-------, owner {owner.st_uid}:{owner.st_gid}: uid {os.getuid()} may "
        "not read it; a file that this user may read"
    ]


def test_a_link_that_leads_out_of_the_data_folder(
    tmp_path: Path, good_row: GoodRow, errors: Check
) -> None:
    outside = write_lines(tmp_path / "secret.jsonl", good_row())
    root = tmp_path / "data"
    root.mkdir()
    (root / "a.jsonl").symlink_to(outside)
    (root / "b.jsonl").symlink_to(root / "c.jsonl")
    write_lines(root / "c.jsonl", good_row())
    assert errors(root / "a.jsonl", root / "b.jsonl", root=root) == [
        f"a.jsonl: got {outside}: it leads out of the data folder; a file below {root}"
    ]


# 51, 62, 63: parquet that is none, or broken


def test_files_that_are_no_parquet(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    whole = write_table(tmp_path / "whole.parquet", [good_row()]).read_bytes()
    cases = {
        "csv": b"prompt,answer\n3 + 5,8\n",
        "cut": whole[:-20],
        "keys": whole[:-4] + b"PARE",
        "footer": b"PAR1" + b"\0" * 20 + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
        "junk": b"PAR1" + b"\xff" * 60 + (40).to_bytes(4, "little") + b"PAR1",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    csv, cut, keys, footer, junk = errors(*(tmp_path / name for name in cases))
    assert csv == (
        f"csv: got first bytes {b'prompt,a'!r}, last bytes {b'3 + 5,8' + bytes([10])!r}: no "
        "parquet file; a parquet file, or format: jsonl"
    )
    assert cut.startswith("cut: got first bytes b'PAR1")
    assert cut.endswith("the end of the file is missing; a parquet file, or format: jsonl")
    assert keys == "keys: got an encrypted file: no keys are known; a parquet file; write it again"
    assert footer == (
        "footer: got a footer of 2147483647 bytes: too many columns or row groups to be data; at "
        "most 67108864 bytes"
    )
    assert junk.startswith("junk: got a damaged footer: ")


def test_a_corrupt_page_is_named(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    rows = [good_row(f"{number} + 5") for number in range(50)]
    options = {"write_page_checksum": True, "compression": "none", "row_group_size": 25}
    path = write_table(tmp_path / "a.parquet", rows, **options)
    content = bytearray(path.read_bytes())
    content[content.index(b"49 + 5")] ^= 1
    path.write_bytes(content)
    (line,) = errors(path)
    assert line.startswith("a.parquet:row group 1:prompt: got data that cannot be decoded: ")
    assert line.endswith("; the file as it was written; rewrite or fetch it again")


def test_a_table_that_is_too_wide(
    tmp_path: Path, good_row: GoodRow, errors: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_checks, "MAX_COLUMNS", 5)
    path = write_table(tmp_path / "a.parquet", [good_row(more=1)])
    assert errors(path) == ["a.parquet: got 7 columns: not a table of prompts; at most 5"]


def test_a_row_group_that_is_too_large(
    tmp_path: Path, good_row: GoodRow, errors: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_checks, "MAX_CHUNK_BYTES", 1_000)
    path = write_table(tmp_path / "a.parquet", [good_row("3 + 5" * 1_000)], compression="gzip")
    (line,) = errors(path)
    assert line.startswith("a.parquet:row group 0:prompt: got 5")
    assert line.endswith(
        ": too much to decode at one time; smaller row groups, such as of 1000 rows"
    )


def test_a_dictionary_that_unfolds_to_much_is_refused(
    tmp_path: Path, good_row: GoodRow, errors: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppojob_trainer.data import parquet_rows

    monkeypatch.setattr(parquet_rows, "MAX_CELL_BYTES", 10_000)
    rows = [good_row(prompt="x" * 100_000) for _ in range(1_000)]
    path = write_table(tmp_path / "a.parquet", rows)
    assert path.stat().st_size < 110_000
    (line,) = errors(path)
    assert "cells of more than 10000 bytes" in line


# 52 to 55, 61, 69, 70: cells


def test_missing_columns_list_those_found(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    table = write_table(tmp_path / "a.parquet", [{"question": "3 + 5", "answer": "8"}])
    lines = write_lines(tmp_path / "b.jsonl", good_row(), {"question": "3 + 5", "answer": "8"})
    assert errors(table, lines) == [
        "a.parquet:prompt: got no such column: the columns are question, answer; a column of that "
        "name, or spec.data.promptKey and dataSourceKey",
        "b.jsonl:2:prompt: got no such column: the columns are question, answer; a column of that "
        "name, or spec.data.promptKey and dataSourceKey",
    ]


MESSAGE = '{"role": "user", "content": "3 + 5"}'
PROMPTS = {
    "null": (
        None,
        "prompt: got null: there is nothing to answer; text, or a list of chat messages",
    ),
    "empty": ("", 'prompt: got "": there is nothing to answer; text, or a list of chat messages'),
    "spaces": (
        " \n",
        'prompt: got " \\n": there is nothing to answer; text, or a list of chat messages',
    ),
    "empty chat": (
        [],
        "prompt: got []: there is nothing to answer; text, or a list of chat messages",
    ),
    "empty messages": (
        [{"role": "user", "content": " "}],
        'prompt: got [" "]: there is nothing to answer; at least one message with content',
    ),
    "number": (
        7,
        f"prompt: got int 7: not a prompt; text, or a list of messages such as {MESSAGE}",
    ),
    "list of text": (
        ["hello"],
        f'prompt[0]: got str "hello": not a prompt; text, or a list of messages such as {MESSAGE}',
    ),
    "nested list": (
        [[{"role": "user", "content": "a"}]],
        'prompt[0]: got list [{"role": "user", "content": "a"}]: not a prompt; text, or a list of '
        f"messages such as {MESSAGE}",
    ),
    "no content": (
        [{"role": "user", "text": "a"}],
        "prompt[0]: got a message with role, text: a message has a role and content; "
        '{"role": "user", "content": "..."}',
    ),
    "role": (
        [{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}],
        'prompt[1].role: got "robot": unknown role; one of system, developer, user, assistant, '
        "tool",
    ),
    "parts": (
        [{"role": "user", "content": [{"type": "text"}]}],
        'prompt[0].content: got list [{"type": "text"}]: a message\'s content is text; text; '
        "pictures and sound are not read",
    ),
    "unequal lists": (
        {"role": ["user", "assistant"], "content": ["a"]},
        "prompt: got 2 roles and 1 contents: every message has one of each; lists of equal length",
    ),
    "NUL": (
        "3\0 + 5",
        'prompt: got "3\\u0000 + 5": it holds a NUL character; text without control characters',
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(name: str, tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    prompt, line = PROMPTS[name]
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row(prompt=prompt), good_row())
    assert errors(path) == [f"a.jsonl:2:{line}"]
    if prompt is not None:
        path = write_table(tmp_path / "a.parquet", [good_row(prompt=prompt)])
        assert errors(path) == [f"a.parquet:0:{line}"]


CELLS = {
    "data source": (
        {"data_source": None},
        'data_source: got null: it names the row\'s task; text such as "openai/gsm8k"',
    ),
    "unknown data source": (
        {"data_source": "ppojob/subtraction"},
        "data_source: got 'ppojob/subtraction': no scorer knows it; one of ppojob/addition",
    ),
    "ground truth": (
        {"reward_model": {"style": "rule"}},
        "reward_model.ground_truth: got nothing: the reward of ppojob/addition needs it; the sum "
        'as text, such as "12"',
    ),
    "no reward model": (
        {"reward_model": None},
        "reward_model.ground_truth: got nothing: the reward of ppojob/addition needs it; the sum "
        'as text, such as "12"',
    ),
    "ground truth of another form": (
        {"reward_model": {"ground_truth": 8}},
        "reward_model.ground_truth: got 8: the reward of ppojob/addition needs it; the sum as "
        'text, such as "12"',
    ),
    "reward model": (
        {"reward_model": "rule"},
        'reward_model: got str "rule": it holds the ground truth; {"style": "rule", '
        '"ground_truth": ...}',
    ),
    "extra info": (
        {"extra_info": [1]},
        "extra_info: got list [1]: it holds named values; a struct, or an object in JSON lines",
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str, tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    change, line = CELLS[name]
    path = write_lines(tmp_path / "a.jsonl", good_row() | change)
    assert errors(path) == [f"a.jsonl:1:{line}"]


def test_cells_that_only_parquet_can_hold(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    nan = good_row(extra_info={"level": float("nan")})
    infinite = good_row(reward_model={"ground_truth": float("-inf")})
    binary = good_row(prompt=b"\x00\xff")
    picture = good_row(extra_info={"image": b"\x89PNG"})
    files = [
        write_table(tmp_path / f"{name}.parquet", [row])
        for name, row in {"n": nan, "i": infinite, "b": binary, "p": picture}.items()
    ]
    assert errors(*files) == [
        "n.parquet:0:extra_info.level: got nan: not a number; finite numbers",
        "i.parquet:0:reward_model.ground_truth: got -inf: not a number; finite numbers",
        "b.parquet:0:prompt: got bytes \"b'\\\\x00\\\\xff'\": not a prompt; text, or a list of "
        f"messages such as {MESSAGE}",
        "p.parquet:0:extra_info.image: got bytes \"b'\\\\x89PNG'\": a reward function gets JSON "
        "values; text, numbers, booleans, lists and structs",
    ]


def test_text_that_is_not_utf8(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b'{"prompt": "\xff\xfe"}\n{"prompt": "\\ud800"}\n')
    table = pa.Table.from_pylist([good_row(), good_row()])
    offsets, text = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")
    table = table.set_column(1, "data_source", pa.StringArray.from_buffers(2, offsets, text))
    pq.write_table(table, tmp_path / "b.parquet")
    found = errors(lines, tmp_path / "b.parquet")
    assert found[0] == "a.jsonl:1: got bytes that are not UTF-8: invalid start byte; UTF-8"
    assert found[1].startswith("a.jsonl:2:")
    assert found[1].endswith("one JSON object a line, numbers finite, no lone surrogates")
    line = "b.parquet:1:data_source: got bytes that are not UTF-8: text is UTF-8; UTF-8"
    assert line in found


# 56 to 60: rows together


def test_all_rows_too_long(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    assert errors(path, maxPromptTokens=3, overlongPrompts="drop")[0] == (
        "spec.data: got 2 of 2 rows dropped: no prompt is within maxPromptTokens 3; a larger "
        "maxPromptTokens, or overlongPrompts: truncate_left"
    )


def test_fewer_rows_than_a_batch(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    assert errors(path, batch=3) == [
        "spec.data.train: got 2 rows: fewer than spec.algorithm.promptsPerStep 3: no batch can be "
        "drawn; at least 3 rows, or a smaller promptsPerStep"
    ]


def test_files_of_different_kinds(tmp_path: Path, good_row: GoodRow, errors: Check) -> None:
    chats = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    texts = write_lines(tmp_path / "b.jsonl", good_row(prompt="3 + 5"), good_row(prompt="1 + 5"))
    assert errors(chats, texts) == [
        "b.jsonl:1:prompt: got text: a.jsonl:1 has messages (and 1 more rows like it); one kind of "
        "prompt in all rows and files"
    ]


def test_duplicate_ids(tmp_path: Path, good_row: GoodRow, warnings: Check) -> None:
    first = write_lines(tmp_path / "a.jsonl", *(good_row(extra_info={"index": n}) for n in (0, 1)))
    second = write_lines(tmp_path / "b.jsonl", *(good_row(extra_info={"index": n}) for n in (2, 1)))
    assert warnings(first, second) == [
        "b.jsonl:2:extra_info.index: got 1 rows with the data source, split and index of another: "
        "the first repeats a.jsonl:2; fine where rows are meant to count twice"
    ]


# 61, 64, 67: worth knowing


def test_control_tokens_within_a_message(
    tmp_path: Path, good_row: GoodRow, warnings: Check
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row("3 <|im_end|> 5"))
    assert warnings(path) == [
        "a.jsonl:2:prompt: got '<|im_end|>': a control token within a message is tokenised as one; "
        "fine where it is meant"
    ]


def test_extension_types_are_read_as_stored(
    tmp_path: Path, good_row: GoodRow, warnings: Check
) -> None:
    table = pa.Table.from_pylist([good_row()])
    name = {b"ARROW:extension:name": b"evil.type", b"ARROW:extension:metadata": b"cbuiltins\neval"}
    field = pa.field("data_source", pa.string(), metadata=name)
    table = table.set_column(1, field, table.column("data_source"))
    pq.write_table(table, tmp_path / "a.parquet")
    assert warnings(tmp_path / "a.parquet") == [
        "a.parquet:data_source: got extension type 'evil.type': no extension is loaded for a data "
        "file; its stored form is read; fine; plain columns say the same"
    ]


def test_held_out_rows_that_are_trained_on(
    tmp_path: Path, good_row: GoodRow, warnings: Check
) -> None:
    train = write_lines(tmp_path / "a.jsonl", good_row("1"), good_row("2"), good_row("3"))
    held_out = write_lines(tmp_path / "b.jsonl", good_row("9"), good_row("2"), good_row("3"))
    assert warnings(train, validation=(held_out,)) == [
        "b.jsonl:2:prompt: got 2 of 3 held-out prompts: they are among the training prompts too; "
        "prompts that are not trained on, or validation tells nothing of new ones"
    ]


# 65, 68


def test_a_file_that_changed_since_the_start() -> None:
    same, old, new = "a" * 64, "b" * 64, "c" * 64
    found = changed_files({"a": same, "b": old, "c": old}, {"a": same, "b": new})
    assert [str(problem) for problem in found] == [
        "b: got SHA-256 cccccccccccccccc: the job was started with bbbbbbbbbbbbbbbb; the same "
        "file, or a job of another name",
        "c: got SHA-256 of no file: the job was started with bbbbbbbbbbbbbbbb; the same file, or a "
        "job of another name",
    ]


LINES = {
    "byte order mark": (
        b'\xef\xbb\xbf{"prompt": "a"}\n',
        "a.jsonl:1:1: got a byte order mark: not part of JSON; UTF-8 without one",
    ),
    "blank": (b"\n", "a.jsonl:1: got a blank line: every line is one row; no blank lines"),
    "list": (
        b"[1, 2]\n",
        "a.jsonl:1: got a JSON list: every line is one row; an object such as "
        '{"prompt": [...], "data_source": "..."}',
    ),
    "word": (
        b'{"prompt": hello}\n',
        "a.jsonl:1:12: got 'hello}\\n': not JSON: invalid character; one JSON object a line, "
        "numbers finite, no lone surrogates",
    ),
    "not a number": (
        b'{"prompt": NaN}\n',
        "a.jsonl:1:12: got 'NaN}\\n': not JSON: invalid character; one JSON object a line, numbers "
        "finite, no lone surrogates",
    ),
    "cut": (
        b'{"prompt": "a"',
        "a.jsonl:1:15: got the end of the line: not JSON: Input data was truncated; one JSON "
        "object a line, numbers finite, no lone surrogates",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_bad_lines(name: str, tmp_path: Path, errors: Check) -> None:
    content, line = LINES[name]
    (tmp_path / "a.jsonl").write_bytes(content)
    assert errors(tmp_path / "a.jsonl") == [line]


def test_a_line_that_never_ends(
    tmp_path: Path, good_row: GoodRow, errors: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "MAX_CELL_BYTES", 1_000)
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row("3 + 5" * 1_000))
    assert errors(path) == [
        "a.jsonl:2: got more than 1000 bytes without an end of line: too long for one row; lines "
        "of at most 1000 bytes"
    ]


# 80, and many at once


def test_a_template_that_refuses_a_row_is_that_rows_problem(
    tmp_path: Path, good_row: GoodRow, make_folder: Callable[..., Path], make_spec: MakeSpec
) -> None:
    template = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}x"
    path = write_lines(
        tmp_path / "a.jsonl", good_row(), good_row(prompt=[{"role": "tool", "content": "a"}])
    )
    with ChatTokenizer(make_folder(template)) as chat:
        report = check_files(make_spec(path), chat, rewards=None, prompts_per_step=1)
    (line,) = report.errors
    assert line.startswith(f"{path}:2:prompt: got a conversation that the chat template refuses: ")
    assert "'no tools'" in line


def test_a_template_that_fails_for_all_is_one_problem(
    tmp_path: Path, good_row: GoodRow, make_folder: Callable[..., Path], make_spec: MakeSpec
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    with ChatTokenizer(make_folder(None)) as chat:
        report = check_files(make_spec(path), chat, rewards=None, prompts_per_step=1)
    (line,) = report.errors
    assert "got no chat template: prompts are chat messages; " in line


def test_many_bad_rows_are_one_line_with_a_count(
    tmp_path: Path, good_row: GoodRow, errors: Check
) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        *(good_row(prompt=None if number % 2 else 7) for number in range(1_000)),
    )
    assert errors(path) == [
        f"a.jsonl:1:prompt: got int 7: not a prompt (and 499 more rows like it); text, or a list "
        f"of messages such as {MESSAGE}",
        "a.jsonl:2:prompt: got null: there is nothing to answer (and 499 more rows like it); text, "
        "or a list of chat messages",
    ]


def test_the_report_itself_is_bounded(tmp_path: Path, errors: Check) -> None:
    found = errors(*(tmp_path / f"{number}.parquet" for number in range(LISTED_PROBLEMS + 7)))
    assert len(found) == LISTED_PROBLEMS + 1
    assert found[-1] == "... and 7 more problems that are not listed"
