"""Data that cannot be used, by what the checks say of it: word for word in bad_data.txt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from golden_lines import assert_lines, read_lines
from prompt_files import PromptFiles, Row, good_row

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.problems import LISTED_PROBLEMS

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_data.txt")

Case = Callable[[PromptFiles], list[str]]
PLAIN = {"write_page_checksum": True, "compression": "none"}


def only(*rows: object, **settings: Any) -> Case:
    return lambda files: files.errors(files.lines("a.jsonl", *rows), **settings)


def rows(*wrong: object, **settings: Any) -> Case:
    """JSON lines; a good row is before them."""
    return only(good_row(), *wrong, **settings)


def raw(content: bytes, name: str = "a.jsonl") -> Case:
    return lambda files: files.errors(files.raw(name, content))


def array(content: bytes) -> Case:
    return raw(content, "a.json")


def program(text: str, **settings: object) -> Case:
    """A file that makes rows; a good one is defined before them."""
    text = f"good = {good_row()!r}\n{text}"
    return lambda files: files.errors(
        train=[{"path": str(files.raw("a.py", text.encode())), **settings}]
    )


def warnings(*rows: object, **settings: Any) -> Case:
    return lambda files: files.warnings(files.lines("a.jsonl", *rows), **settings)


def no_files(files: PromptFiles) -> list[str]:
    (files.folder / "folder").mkdir()
    files.raw("folder/notes.txt", b"prompts")
    files.raw("empty.jsonl", b"")
    files.raw("empty.parquet", b"")
    names = ("none.parquet", "none-*.parquet", "folder", "folder/", "empty.jsonl", "empty.parquet")
    return files.errors(*(f"{files.folder}/{name}" for name in names))


def no_parquet(files: PromptFiles) -> list[str]:
    whole = files.table("whole.parquet", good_row()).read_bytes()
    csv = files.raw("csv", b"prompt,answer\n3 + 5,8\n")
    return files.errors(csv, files.raw("cut", whole[:-20]))


def shares(files: PromptFiles) -> list[str]:
    small = files.lines("a.jsonl", good_row("1"))
    large = files.lines("b.jsonl", *(good_row(str(n)) for n in range(9)))
    train = [{"path": str(path), "weight": 1} for path in (small, large)]
    return files.errors(train=train, batch=4)


def demonstrations(files: PromptFiles) -> list[str]:
    """As many good rows as a step has are answers to prompts, and one more is none."""
    good = [{"q": "3 + 5", "a": "8"}] * 2
    paths = [files.lines("a.jsonl", *good, {"q": "3 + 9"}), files.lines("b.jsonl", *good)]
    train = files.lines("train.jsonl", *map(good_row, "abc"))
    keys = {"demonstrationPromptKey": "q", "demonstrationAnswerKey": "a"}
    return [
        line
        for path in (*paths, files.folder / "c.jsonl")
        for line in files.errors(train, demonstrations=[{"path": str(path)}], batch=3, **keys)
    ]


def torn(files: PromptFiles, name: str, text: str, number: int) -> Path:
    """A table in which a byte of the last row is another than was written."""
    contents = [good_row(f"{row} + 5") for row in range(number)] + [good_row(text)]
    path = files.table(name, *contents, row_group_size=25, **PLAIN)
    content = bytearray(path.read_bytes())
    content[content.index(text.encode())] ^= 1
    return files.raw(name, bytes(content))


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
    info = pa.array([{"at": None}, {"at": value}], pa.struct([("at", kind)]))
    table = pa.Table.from_pylist([good_row("3 + 5"), good_row("3 + 6")])
    table = table.set_column(table.column_names.index("extra_info"), "extra_info", info)
    return lambda files: files.errors(files.columns("a.parquet", table))


def no_difficulty(files: PromptFiles) -> list[str]:
    levels: list[object] = [2, None, "hard", True]
    wrong = [good_row(f"{n} + 1", extra_info={"level": n}) for n in levels]
    path = files.table("b.parquet", good_row(extra_info={"level": float("inf")}))
    return files.errors(files.lines("a.jsonl", *wrong), path, curriculum={"key": "level"})


def scores_from_beforehand(files: PromptFiles) -> list[str]:
    cells: list[object] = [[1.0, 0], None, [], 0.5, [1, None], [True]]
    rows = [good_row(f"{n} + 1", extra_info={"tried": cell}) for n, cell in enumerate(cells)]
    return files.errors(files.lines("a.jsonl", *rows), scores_key="tried")


def scores_that_no_row_has(files: PromptFiles) -> list[str]:
    """The name of the column is wrong, say."""
    rows = [good_row(f"{n} + 1", extra_info={"tried": [1.0, 0.0]}) for n in range(2)]
    return files.errors(files.lines("a.jsonl", *rows), scores_key="tired")


def given_responses(files: PromptFiles) -> list[str]:
    user, said = {"role": "user", "content": "8"}, {"role": "assistant", "content": "8"}
    call = {"function": {"name": "add", "arguments": {}}}
    parts = {**said, "content": [{"type": "text", "text": "8"}]}
    cells: list[object] = ["8", ["8", said], [user], 8, ["8", ""], {**said, "tool_calls": [call]}]
    cells.append(parts)
    rows = [good_row(f"{n} + 1", target=cell) for n, cell in enumerate(cells)]
    found = files.errors(files.lines("a.jsonl", *rows), guidance_key="target")
    long = files.lines("b.jsonl", good_row(target=["8", "eight and nothing else"]))
    found += files.errors(long, guidance_key="target", max_response_tokens=8)
    thoughts = files.lines("c.jsonl", good_row(target={**said, "reasoning_content": "4 and 4"}))
    found += files.errors(thoughts, guidance_key="target")
    none = files.lines("d.jsonl", good_row(target=None), good_row("1 + 1", target=[]))
    found += files.errors(none, guidance_key="target")
    all_bad = files.lines("e.jsonl", good_row(target=None), good_row("1 + 1", target=2))
    return [*found, *files.errors(all_bad, guidance_key="target")]


def two_kinds(files: PromptFiles) -> list[str]:
    chats = files.lines("a.jsonl", good_row(), good_row())
    return files.errors(
        chats, files.lines("b.jsonl", good_row(prompt="3 + 5"), good_row(prompt="1 + 5"))
    )


def trained_on(files: PromptFiles) -> list[str]:
    chats = [good_row(text, messages=good_row(text)["prompt"]) for text in "123923"]
    train, held_out = files.lines("a.jsonl", *chats[:3]), files.lines("b.jsonl", *chats[3:])
    return files.warnings(train, held_out=held_out, prompt_key="messages")


LONG = [good_row(f"{number} + 5 " * 40) for number in (3, 4)]
CASES: dict[str, Case] = {
    "no files": no_files,
    "no parquet": no_parquet,
    "no rows": lambda files: files.errors(
        files.columns("a.parquet", pa.Table.from_pylist([good_row()]).slice(0, 0))
    ),
    "too long": rows(*LONG, maxPromptTokens=60),
    "a share that is more than a file has": shares,
    "demonstrations": demonstrations,
    "some too long (a warning)": warnings(
        good_row(), LONG[0], maxPromptTokens=60, overlongPrompts="drop"
    ),
    "corrupt page": lambda files: files.errors(torn(files, "a.parquet", "49 + 7", 49)),
    "blank line": raw(b"\n"),
    "list for a row": raw(b"[1, 2]\n"),
    "NaN in JSON": raw(b'{"prompt": NaN}\n'),
    "cut line": raw(b'{"prompt": "a"'),
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
    "scores from beforehand": scores_from_beforehand,
    "scores that no row has": scores_that_no_row_has,
    "given responses": given_responses,
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
    "a teacher's prompt": only(
        good_row(hint=None),
        good_row(hint="8"),
        good_row(hint=LONG[0]["prompt"]),
        teacherPromptKey="hint",
        maxTeacherPromptTokens=60,
    ),
    "no teacher's prompt": only(good_row(), teacherPromptKey="extra_info.hint"),
    "all too long": rows(good_row(), maxPromptTokens=3, overlongPrompts="drop"),
    "fewer rows than a batch": rows(good_row(), batch=3),
    "two kinds of prompts": two_kinds,
    "the row that decides the kind": only(good_row(prompt=7), good_row(prompt="3 + 5"), good_row()),
    "many bad rows": only(*(good_row(prompt=(7, None)[row % 2]) for row in range(1_000))),
    "media that nobody sees (a warning)": lambda files: (
        files.warnings(
            files.table(
                "a.parquet",
                good_row("<image> 3?", images=["x"]),
                good_row("<video> 3?", images=["x"]),
            )
        )
        + files.warnings(files.lines("b.jsonl", good_row("<audio> 3?", audios=["x"])))
    ),
    "control token (a warning)": warnings(good_row(), good_row("3 <|im_end|> 5")),
    "trained on (a warning)": trained_on,
}


@pytest.mark.parametrize("name", CASES)
def test_bad_data(name: str, files: PromptFiles) -> None:
    # Since Python 3.13 json says which number is not JSON.
    lines = [line.replace("compliant: nan", "compliant") for line in CASES[name](files)]
    assert_lines(lines, EXPECTED[name])


def test_the_checks_tell_the_digests_of_what_a_run_reads(files: PromptFiles) -> None:
    path = files.lines("a.jsonl", good_row(), good_row("4"))
    with files.open(path) as dataset:
        assert files.report(path).digests == {"train": dataset.digest}


def test_a_file_that_is_read_twice_is_told_of_once(files: PromptFiles) -> None:
    path = files.lines("a.jsonl", good_row(), good_row(prompt=7))
    once = files.errors(path)
    assert files.errors(path, validation=[{"path": str(path)}]) == once
    assert len(once) == 1


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
}


@pytest.mark.parametrize("name", PROMPTS)
def test_bad_prompts_in_both_formats(name: str, files: PromptFiles) -> None:
    (expected,) = EXPECTED[f"prompt: {name}"]
    wrong = good_row(prompt=PROMPTS[name])
    assert files.errors(files.lines("a.jsonl", good_row(), wrong, good_row())) == [expected]
    if name != "null":
        (found,) = files.errors(files.table("a.parquet", wrong))
        assert found == expected.replace("a.jsonl:2:", "a.parquet:0:")


ASKED, ANSWERED = ({"role": role, "content": "a"} for role in ("user", "assistant"))
ANSWERS: dict[str, object] = {
    "text": "3 + 5 = 8",
    "no answer": [ASKED],
    "an answer to nobody": [ANSWERED],
    "two in a row": [ASKED, ANSWERED, ANSWERED],
    "role": [ASKED, {"role": "gpt", "content": "a"}],
    "no text": [ASKED, {"role": "assistant", "content": 8}],
    "calls": [ASKED, {**ANSWERED, "tool_calls": [{"id": "1"}]}],
    "mask": [ASKED, {**ANSWERED, "loss_mask": 0.5}],
    "mask of another": [{**ASKED, "loss_mask": 1}, ANSWERED],
    "too long": [ASKED, {**ANSWERED, "content": "a+" * 99}],
    "nothing learnt": [ASKED, {**ANSWERED, "loss_mask": 0}],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_bad_answers(name: str, files: PromptFiles) -> None:
    path = files.lines("a.jsonl", {"messages": ANSWERS[name]})
    settings = {"promptKey": "messages", "maxResponseTokens": 50}
    assert_lines(files.errors(path, given="sft", **settings), EXPECTED[f"answer: {name}"])


PAIRS: dict[str, object] = {
    "no text": {"q": "a", "of": {"a": 8}},
    "no entry": {"q": "a", "of": {"b": "8"}},
    "no column": {"q": "a"},
}


@pytest.mark.parametrize("name", PAIRS)
def test_bad_pairs(name: str, files: PromptFiles) -> None:
    path = files.lines("a.jsonl", PAIRS[name])
    found = files.errors(path, given="sft", promptKey="q", answerKey="of.a")
    assert_lines(found, EXPECTED[f"pair: {name}"])


PREFERENCES: dict[str, object] = {
    "no rejected": {"prompt": "a", "chosen": "b"},
    "no prompt": {"chosen": "b", "rejected": "c"},
    "empty": {"prompt": "a", "chosen": " ", "rejected": "c"},
    "equal": {"prompt": "a", "chosen": "b", "rejected": [ANSWERED | {"content": "b"}]},
    "nothing in common": {"chosen": [ASKED, ANSWERED], "rejected": "c"},
    "part at the user": {
        "chosen": [ASKED, ANSWERED, ASKED, ANSWERED],
        "rejected": [ASKED, ANSWERED, ASKED | {"content": "b"}, ANSWERED],
    },
    "one begins the other": {
        "chosen": [ASKED, ANSWERED],
        "rejected": [ASKED, ANSWERED, ASKED, ANSWERED],
    },
    "end of another": {"prompt": "a", "chosen": [ASKED], "rejected": "c"},
    "text and turns": {"prompt": "a", "chosen": [ANSWERED, ASKED, ANSWERED], "rejected": "c"},
}


@pytest.mark.parametrize("name", PREFERENCES)
def test_bad_preferences(name: str, files: PromptFiles) -> None:
    found = files.errors(files.lines("a.jsonl", PREFERENCES[name]), given="dpo")
    assert_lines(found, EXPECTED[f"preference: {name}"])


LABELLED: dict[str, object] = {
    "no completion": {"prompt": "a", "answer": "b", "label": True},
    "no label": {"prompt": "a", "completion": "b", "label": None},
    "words": {"prompt": "a", "completion": "b", "label": "good"},
    "a row alone": {"prompt": "a", "completion": "b", "label": True},
    "whole conversation": {"prompt": "a", "completion": [ASKED, ANSWERED], "label": 1},
    "prompt that is text": {"prompt": "a", "completion": [ANSWERED, ASKED, ANSWERED], "label": 0},
}


@pytest.mark.parametrize("name", LABELLED)
def test_bad_labelled_answers(name: str, files: PromptFiles) -> None:
    found = files.errors(files.lines("a.jsonl", LABELLED[name]), given="kto")
    assert_lines(found, EXPECTED[f"labelled: {name}"])


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
    prompts |= {f"answer: {name}" for name in ANSWERS} | {f"pair: {name}" for name in PAIRS}
    prompts |= {f"preference: {name}" for name in PREFERENCES}
    prompts |= {f"labelled: {name}" for name in LABELLED}
    assert EXPECTED.keys() == CASES.keys() | prompts | TEMPLATES.keys()
