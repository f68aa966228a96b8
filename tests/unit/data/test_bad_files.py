"""Cases 49 to 51 and 62 to 68 of the bad-input catalogue: files. One exact line each."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data import file_checks, json_lines, parquet_rows
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files

MakeSpec = Callable[..., DataSpec]
GoodRow = Callable[..., dict[str, object]]
Check = Callable[..., list[str]]
Write = Callable[..., Path]


def test_good_files_have_no_problem(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write, write_table: Write
) -> None:
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


def test_a_table_without_rows(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_table: Write
) -> None:
    table = pa.Table.from_pylist([good_row()])
    pq.write_table(table.slice(0, 0), tmp_path / "a.parquet")
    (line,) = errors(tmp_path / "a.parquet")
    assert line.startswith("a.parquet: got 0 rows in ")
    assert line.endswith(" row groups: there is nothing to draw from; at least one row")


def test_a_file_that_may_not_be_read(
    tmp_path: Path,
    good_row: GoodRow,
    errors: Check,
    monkeypatch: pytest.MonkeyPatch,
    write_lines: Write,
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row())
    path.chmod(0o600)
    monkeypatch.setattr(file_checks.os, "access", lambda *_: False)  # root may read anything
    owner = path.stat()
    assert errors(path) == [
        f"a.jsonl: got mode -rw-------, owner {owner.st_uid}:{owner.st_gid}: uid {os.getuid()} may "
        "not read it; a file that this user may read"
    ]


# 51, 62, 63: parquet that is none, or broken


def test_files_that_are_no_parquet(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_table: Write
) -> None:
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


def test_a_corrupt_page_is_named(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_table: Write
) -> None:
    rows = [good_row(f"{number} + 5") for number in range(50)]
    options = {"write_page_checksum": True, "compression": "none", "row_group_size": 25}
    path = write_table(tmp_path / "a.parquet", rows, **options)
    content = bytearray(path.read_bytes())
    content[content.index(b"49 + 5")] ^= 1
    path.write_bytes(content)
    (line,) = errors(path)
    assert line.startswith("a.parquet:row group 1:prompt: got data that cannot be decoded: ")
    assert line.endswith("; the file as it was written; rewrite or fetch it again")


def test_an_unknown_codec_is_named(tmp_path: Path, errors: Check, write_table: Write) -> None:
    rows = [{"prompt": "3+5", "data_source": "tiny"}] * 4
    path = write_table(tmp_path / "a.parquet", rows, compression="none")
    content = bytearray(path.read_bytes())
    codec = content.rindex(b"prompt\x15\x00") + len(b"prompt\x15")
    content[codec] = 2 * 40  # as the footer writes the number 40
    path.write_bytes(content)
    (line,) = errors(path)
    assert line.startswith(
        "a.parquet:row group 0:prompt: got data that cannot be decoded: Unsupported compression "
    )


class PlainKeys(encryption.KmsClient):
    """Keeps keys as they are."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize(
    ("is_footer_plain", "got"), [(True, "encrypted columns"), (False, "an encrypted file")]
)
def test_an_encrypted_table(is_footer_plain: bool, got: str, tmp_path: Path, errors: Check) -> None:
    table = pa.table({"prompt": ["3+5"] * 4, "data_source": ["tiny"] * 4})
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"key": ["prompt"]}, plaintext_footer=is_footer_plain
    )
    properties = encryption.CryptoFactory(PlainKeys).file_encryption_properties(
        encryption.KmsConnectionConfig(), settings
    )
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    assert errors(path) == [
        f"a.parquet: got {got}: no keys are known; a parquet file; write it again"
    ]


def test_a_table_that_is_too_wide(
    tmp_path: Path,
    good_row: GoodRow,
    errors: Check,
    monkeypatch: pytest.MonkeyPatch,
    write_table: Write,
) -> None:
    monkeypatch.setattr(file_checks, "MAX_COLUMNS", 5)
    path = write_table(tmp_path / "a.parquet", [good_row(more=1)])
    assert errors(path) == ["a.parquet: got 7 columns: not a table of prompts; at most 5"]


def test_a_row_group_that_is_too_large(
    tmp_path: Path,
    good_row: GoodRow,
    errors: Check,
    monkeypatch: pytest.MonkeyPatch,
    write_table: Write,
) -> None:
    monkeypatch.setattr(file_checks, "MAX_CHUNK_BYTES", 1_000)
    path = write_table(tmp_path / "a.parquet", [good_row("3 + 5" * 1_000)], compression="gzip")
    (line,) = errors(path)
    assert line.startswith("a.parquet:row group 0:prompt: got 5")
    assert line.endswith(
        ": too much to decode at one time; smaller row groups, such as of 1000 rows"
    )


def test_a_dictionary_that_unfolds_to_much_is_refused(
    tmp_path: Path,
    good_row: GoodRow,
    errors: Check,
    monkeypatch: pytest.MonkeyPatch,
    write_table: Write,
) -> None:
    monkeypatch.setattr(parquet_rows, "MAX_CELL_BYTES", 10_000)
    rows = [good_row(prompt="x" * 100_000) for _ in range(1_000)]
    path = write_table(tmp_path / "a.parquet", rows)
    assert path.stat().st_size < 110_000
    (line,) = errors(path)
    assert "cells of more than 10000 bytes" in line


def test_two_columns_of_one_name(tmp_path: Path, errors: Check) -> None:
    names = ["prompt", "prompt", "data_source", "other", "other"]
    table = pa.Table.from_arrays([pa.array(["a"])] * 5, names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    assert errors(tmp_path / "a.parquet") == [
        "a.parquet:prompt: got 2 columns of this name: which of them is meant cannot be told; each "
        "name once"
    ]


# 65, 68


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
    "deep": (
        b'{"prompt": "a", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "a.jsonl:1: got lists or objects in each other: nested too deep to be read; a flatter row",
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
    tmp_path: Path,
    good_row: GoodRow,
    errors: Check,
    monkeypatch: pytest.MonkeyPatch,
    write_lines: Write,
) -> None:
    monkeypatch.setattr(json_lines, "MAX_CELL_BYTES", 1_000)
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row("3 + 5" * 1_000))
    assert errors(path) == [
        "a.jsonl:2: got more than 1000 bytes without an end of line: too long for one row; lines "
        "of at most 1000 bytes"
    ]


def test_rows_behind_a_file_that_cannot_be_read_are_named_rightly(
    tmp_path: Path,
    good_row: GoodRow,
    chat: ChatTokenizer,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
    write_lines: Write,
    write_table: Write,
) -> None:
    monkeypatch.setattr(json_lines, "MAX_CELL_BYTES", 1_000)
    long = write_lines(tmp_path / "long.jsonl", good_row("3 + 5" * 1_000))
    options = {"write_page_checksum": True, "compression": "none"}
    torn = write_table(tmp_path / "torn.parquet", [good_row("1 + 1")] * 5, **options)
    content = bytearray(torn.read_bytes())
    content[content.index(b"1 + 1")] ^= 1
    torn.write_bytes(content)
    again = good_row(extra_info={"split": "train", "index": 7})
    last = write_lines(tmp_path / "last.jsonl", good_row("2"), again, again)
    report = check_files(make_spec(long, torn, last), chat, rewards=None, prompts_per_step=1)
    assert [line.partition(": ")[0] for line in report.errors] == [
        f"{long}:1",
        f"{torn}:row group 0:prompt",
    ]
    assert report.warnings == [
        f"{last}:3:extra_info.index: got 1 rows with the data source, split and index of another: "
        f"the first repeats {last}:2; fine where rows are meant to count twice"
    ]
