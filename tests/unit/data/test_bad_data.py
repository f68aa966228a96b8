"""Data that cannot be used, by what the checks say of it: word for word in bad_data.txt."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from golden_lines import assert_lines, read_lines
from prompt_files import PromptFiles, Row, SumsOnly, good_row

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data import formats
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.problems import LISTED_PROBLEMS

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_data.txt")

Case = Callable[[PromptFiles], list[str]]
PLAIN = {"write_page_checksum": True, "compression": "none"}


def rows(*wrong: object) -> Case:
    """JSON lines; a good row goes before them."""
    return lambda files: files.errors(files.lines("a.jsonl", good_row(), *wrong))


def line(content: bytes) -> Case:
    return lambda files: files.errors(files.raw("a.jsonl", content))


def no_files(files: PromptFiles) -> list[str]:
    (files.folder / "folder").mkdir()
    (files.folder / "folder" / "notes.txt").write_text("prompts")
    files.raw("empty.jsonl", b"")
    files.raw("empty.parquet", b"")
    names = ("none.parquet", "none-*.parquet", "folder", "folder/", "empty.jsonl", "empty.parquet")
    return files.errors(*(f"{files.folder}/{name}" for name in names))


def no_parquet(files: PromptFiles) -> list[str]:
    whole = files.table("whole.parquet", good_row()).read_bytes()
    contents = {
        "csv": b"prompt,answer\n3 + 5,8\n",
        "cut": whole[:-20],
    }
    return files.errors(*(files.raw(name, content) for name, content in contents.items()))


def program(text: str, **settings: object) -> Case:
    """A file that makes rows; a good one goes before them."""
    head = f"good = {good_row()!r}\n"

    def check(files: PromptFiles) -> list[str]:
        path = files.raw("a.py", (head + text).encode())
        spec = DataSpec.model_validate({"train": [{"path": str(path), **settings}]})
        found = check_files(spec, files.chat, rewards=SumsOnly(), draw=("promptsPerStep", 1))
        return [line.replace(f"{files.folder}/", "") for line in found.errors]

    return check


def too_long_by_default(files: PromptFiles) -> list[str]:
    rows = [good_row(), good_row("3 + 5 " * 40), good_row("4 + 5 " * 40)]
    return files.errors(files.lines("a.jsonl", *rows), maxPromptTokens=60)


def some_dropped(files: PromptFiles) -> list[str]:
    path = files.lines("a.jsonl", good_row(), good_row("3 + 5 " * 40))
    report = files.report(path, maxPromptTokens=60, overlongPrompts="drop")
    return [line.replace(f"{files.folder}/", "") for line in report.warnings]


def shares(files: PromptFiles) -> list[str]:
    train = [
        {"path": str(files.lines("a.jsonl", good_row("1"))), "weight": 1},
        {"path": str(files.lines("b.jsonl", *(good_row(str(n)) for n in range(9)))), "weight": 1},
    ]
    spec = DataSpec.model_validate({"train": train})
    found = check_files(spec, files.chat, rewards=SumsOnly(), draw=("promptsPerStep", 4)).errors
    return [line.replace(f"{files.folder}/", "") for line in found]


def no_rows(files: PromptFiles) -> list[str]:
    return files.errors(files.columns("a.parquet", pa.Table.from_pylist([good_row()]).slice(0, 0)))


def torn(files: PromptFiles, name: str, text: str, number: int) -> Path:
    """A table in which a byte of the last row is another than was written."""
    contents = [good_row(f"{row} + 5") for row in range(number)] + [good_row(text)]
    path = files.table(name, *contents, row_group_size=25, **PLAIN)
    content = bytearray(path.read_bytes())
    content[content.index(text.encode())] ^= 1
    return files.raw(name, bytes(content))


def corrupt_page(files: PromptFiles) -> list[str]:
    return files.errors(torn(files, "a.parquet", "49 + 7", 49))


def missing_columns(files: PromptFiles) -> list[str]:
    other: Row = {"question": "3 + 5", "answer": "8"}
    first, second = files.table("a.parquet", other), files.lines("b.jsonl", good_row(), other)
    return files.errors(first, second)


def only_in_parquet(files: PromptFiles) -> list[str]:
    wrong = {
        "n": good_row(extra_info={"level": float("nan")}),
        "i": good_row(reward_model={"ground_truth": float("-inf")}),
        "b": good_row(prompt=b"\x00\xff"),
        "p": good_row(extra_info={"image": b"\x89PNG"}),
    }
    return files.errors(*(files.table(f"{name}.parquet", row) for name, row in wrong.items()))


def no_utf8(files: PromptFiles) -> list[str]:
    lines = files.raw("a.jsonl", b'{"prompt": "\xff\xfe"}\n{"prompt": "\\ud800"}\n')
    prompts = pa.Table.from_pylist([good_row(), good_row()])
    offsets, text = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")
    sources = pa.StringArray.from_buffers(2, offsets, text)
    return files.errors(
        lines, files.columns("b.parquet", prompts.set_column(1, "data_source", sources))
    )


def times(kind: pa.DataType, value: int) -> Case:
    """A time that Python lacks."""

    def check(files: PromptFiles) -> list[str]:
        columns = {
            "prompt": ["3 + 5", "3 + 6"],
            "data_source": ["ppojob/addition"] * 2,
            "reward_model": [{"ground_truth": "8"}, {"ground_truth": "9"}],
            "extra_info": pa.array([{"at": None}, {"at": value}], pa.struct([("at", kind)])),
        }
        return files.errors(files.columns("a.parquet", pa.table(columns)))

    return check


def too_long(files: PromptFiles) -> list[str]:
    path = files.lines("a.jsonl", good_row(), good_row())
    return files.errors(path, maxPromptTokens=3, overlongPrompts="drop")


def array(content: bytes) -> Case:
    return lambda files: files.errors(files.raw("a.json", content))


def no_difficulty(files: PromptFiles) -> list[str]:
    levels: list[object] = [2, None, "hard", True, float("nan")]
    wrong = [good_row(f"{n} + 1", extra_info={"level": n}) for n in levels[:4]]
    path = files.table("b.parquet", good_row(extra_info={"level": float("inf")}))
    return files.errors(files.lines("a.jsonl", *wrong), path, curriculum={"key": "level"})


def two_kinds(files: PromptFiles) -> list[str]:
    chats = files.lines("a.jsonl", good_row(), good_row())
    texts = files.lines("b.jsonl", good_row(prompt="3 + 5"), good_row(prompt="1 + 5"))
    return files.errors(chats, texts)


def same_rows(files: PromptFiles) -> list[str]:
    names = {"a.jsonl": (0, 1), "b.jsonl": (2, 1)}
    return files.warnings(
        *(
            files.lines(name, *(good_row(extra_info={"index": index}) for index in indices))
            for name, indices in names.items()
        )
    )


def control_token(files: PromptFiles) -> list[str]:
    return files.warnings(files.lines("a.jsonl", good_row(), good_row("3 <|im_end|> 5")))


def trained_on(files: PromptFiles) -> list[str]:
    train = files.lines("a.jsonl", good_row("1"), good_row("2"), good_row("3"))
    held_out = files.lines("b.jsonl", good_row("9"), good_row("2"), good_row("3"))
    return files.warnings(train, held_out=held_out)


CASES: dict[str, Case] = {
    "no files": no_files,
    "no parquet": no_parquet,
    "no rows": no_rows,
    "too long": too_long_by_default,
    "a share that is more than a file has": shares,
    "some too long (a warning)": some_dropped,
    "corrupt page": corrupt_page,
    "byte order mark": line(b'\xef\xbb\xbf{"prompt": "a"}\n'),
    "blank line": line(b"\n"),
    "list for a row": line(b"[1, 2]\n"),
    "NaN in JSON": line(b'{"prompt": NaN}\n'),
    "cut line": line(b'{"prompt": "a"'),
    "program: no such function": program("def train(): pass\ndef held_out(): pass"),
    "program: no Python": program("def rows() return []"),
    "program: imports what is not there": program("import nowhere_at_all"),
    "program: unknown argument": program("def rows(): pass", arguments={"rows": 3}),
    "program: async": program("async def rows(): yield good"),
    "program: no iterable": program("def rows(): return 7"),
    "program: raises": program("def rows():\n    yield good\n    raise ValueError('no more')"),
    "program: what is no row": program("def rows(): yield from [good, 7]"),
    "program: what JSON lacks": program("def rows(): yield good | {'extra_info': {'of': print}}"),
    "program: no number": program("def rows(): yield good | {'extra_info': {'of': float('nan')}}"),
    "program: bad cells": program("def rows(): yield from [good, good | {'prompt': []}, {}]"),
    "program: no rows": program("def rows(): return ()"),
    "program: ends": program("import os\ndef rows():\n    yield good\n    os._exit(3)"),
    "array: what is no row": array(b'[{"prompt": "a"}, 7]'),
    "array: cut": array(b'[{"prompt": "a"}, {"pro'),
    "array: no rows": array(b"[]"),
    "array: no UTF-8": array(b'[{"prompt": "\xff\xfe"}]'),
    "no difficulty": no_difficulty,
    "missing columns": missing_columns,
    "data source": rows(good_row(data_source=None)),
    "unknown data source": rows(good_row(data_source="ppojob/subtraction")),
    "no ground truth": rows(good_row(reward_model={"style": "rule"})),
    "no reward model": rows(good_row(reward_model=None)),
    "ground truth of another form": rows(good_row(reward_model={"ground_truth": 8})),
    "reward model": rows(good_row(reward_model="rule")),
    "extra info": rows(good_row(extra_info=[1])),
    "what only parquet can hold": only_in_parquet,
    "no UTF-8": no_utf8,
    "nanoseconds": times(pa.timestamp("ns"), 1_700_000_000_123_456_789),
    "far day": times(pa.date32(), 9_000_000),
    "all too long": too_long,
    "fewer rows than a batch": lambda files: files.errors(
        files.lines("a.jsonl", good_row(), good_row()), batch=3
    ),
    "two kinds of prompts": two_kinds,
    "the row that decides the kind": lambda files: files.errors(
        files.lines("a.jsonl", good_row(prompt=7), good_row(prompt="3 + 5"), good_row())
    ),
    "many bad rows": lambda files: files.errors(
        files.lines("a.jsonl", *(good_row(prompt=(7, None)[row % 2]) for row in range(1_000)))
    ),
    "same rows (a warning)": same_rows,
    "control token (a warning)": control_token,
    "trained on (a warning)": trained_on,
}


@pytest.mark.parametrize("name", CASES)
def test_bad_data(name: str, files: PromptFiles) -> None:
    assert_lines(CASES[name](files), EXPECTED[name])


PROMPTS: dict[str, object] = {
    "null": None,
    "empty": "",
    "spaces": " \n",
    "empty chat": [],
    "empty messages": [{"role": "user", "content": " "}],
    "number": 7,
    "list of text": ["hello"],
    "nested list": [[{"role": "user", "content": "a"}]],
    "no content": [{"role": "user", "text": "a"}],
    "role": [{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}],
    "parts": [{"role": "user", "content": [{"type": "text"}]}],
    "an answer at the end": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ],
    "unequal lists": {"role": ["user", "assistant"], "content": ["a"]},
}


@pytest.mark.parametrize("name", PROMPTS)
def test_bad_prompts_in_both_formats(name: str, files: PromptFiles) -> None:
    (expected,) = EXPECTED[f"prompt: {name}"]
    wrong = good_row(prompt=PROMPTS[name])
    assert files.errors(files.lines("a.jsonl", good_row(), wrong, good_row())) == [expected]
    if name != "null":
        (found,) = files.errors(files.table("a.parquet", wrong))
        assert found == expected.replace("a.jsonl:2:", "a.parquet:0:")


def test_too_large(files: PromptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_ARRAY_BYTES", 10)
    assert_lines(array(b'[{"prompt": "a"}]')(files), EXPECTED["array: too long"])


TEMPLATES = {
    "template that leaves nothing": (
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    ),
    "template that refuses a row": (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}x"
    ),
    "no template": None,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(name: str, tmp_path: Path, make_folder: Callable[..., Path]) -> None:
    tool = good_row(prompt=[{"role": "tool", "content": "be nice"}])
    with ChatTokenizer(make_folder(TEMPLATES[name])) as chat:
        files = PromptFiles(tmp_path, chat)
        assert_lines(rows(tool)(files), EXPECTED[name])


def test_rows_behind_a_file_that_cannot_be_read_are_named_rightly(files) -> None:
    again = good_row(extra_info={"split": "train", "index": 7})
    last = files.lines("last.jsonl", good_row("2"), again, again)
    report = files.report(torn(files, "torn.parquet", "1 + 1", 0), last)
    places = [line.partition(": ")[0] for line in [*report.errors, *report.warnings]]
    assert [place.removeprefix(f"{files.folder}/") for place in places] == [
        "torn.parquet:row group 0",
        "last.jsonl:3:extra_info.index",
    ]


def test_rows_without_ground_truth_are_counted_where_any_function_may_score(files) -> None:
    bare = [good_row(f"{n} + 1", reward_model=None) for n in range(3)]
    path = files.lines("a.jsonl", good_row(), *bare)
    report = check_files(files.spec(path), files.chat, rewards=None, draw=("promptsPerStep", 1))
    assert report.errors == []
    (warning,) = report.warnings
    assert warning.startswith(f"{path}:2:reward_model.ground_truth: got nothing: ")
    assert "2 more rows like it" in warning


def test_the_report_itself_is_bounded(files: PromptFiles) -> None:
    names = (f"{number}.parquet" for number in range(LISTED_PROBLEMS + 7))
    found = files.errors(*(files.folder / name for name in names))
    assert len(found) == LISTED_PROBLEMS + 1
    assert found[-1] == "... and 7 more problems that are not listed"


def test_every_line_has_its_case() -> None:
    prompts = {f"prompt: {name}" for name in PROMPTS}
    assert EXPECTED.keys() == CASES.keys() | prompts | {"array: too long"} | TEMPLATES.keys()
