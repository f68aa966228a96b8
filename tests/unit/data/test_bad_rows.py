"""Cases 52 to 61, 64, 67, 69, 70 and 80 of the catalogue: rows. One exact line each."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.problems import LISTED_PROBLEMS

MakeSpec = Callable[..., DataSpec]
GoodRow = Callable[..., dict[str, object]]
Check = Callable[..., list[str]]
Write = Callable[..., Path]


# 52 to 55, 61, 69, 70: cells


def test_missing_columns_list_those_found(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write, write_table: Write
) -> None:
    table = write_table(tmp_path / "a.parquet", [{"question": "3 + 5", "answer": "8"}])
    lines = write_lines(tmp_path / "b.jsonl", good_row(), {"question": "3 + 5", "answer": "8"})
    assert errors(table, lines) == [
        "a.parquet:prompt: got no such column: the columns are question, answer; a column of that "
        "name, or spec.data.promptKey and dataSourceKey",
        "b.jsonl:2:prompt: got no such column: the columns are question, answer; a column of that "
        "name, or spec.data.promptKey and dataSourceKey",
    ]


def test_a_prompt_of_which_the_template_leaves_nothing(
    tmp_path: Path,
    good_row: GoodRow,
    make_folder: Callable[..., Path],
    make_spec: MakeSpec,
    write_lines: Write,
) -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    silent = good_row(prompt=[{"role": "system", "content": "be nice"}])
    path = write_lines(tmp_path / "a.jsonl", good_row(), silent)
    with ChatTokenizer(make_folder(template)) as chat:
        report = check_files(make_spec(path), chat, rewards=None, prompts_per_step=1)
    assert report.errors == [
        f"{path}:2:prompt: got a prompt of no tokens: there is nothing to answer; content that the "
        "chat template and the tokenizer keep"
    ]


TIMES = {
    "nanoseconds": (
        pa.timestamp("ns"),
        1_700_000_000_123_456_789,
        "Nanosecond resolution temporal ",
    ),
    "duration": (pa.duration("ns"), 1_234_567, "Nanosecond duration 1234567 is not safely"),
    "clock": (pa.time64("ns"), 1_234_567, "Nanosecond resolution temporal type 1234567 is not"),
    "far": (pa.timestamp("us"), 400_000_000_000_000_000, "date value out of range"),
    "far day": (pa.date32(), 9_000_000, "date value out of range"),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_that_python_lacks(name: str, tmp_path: Path, errors: Check) -> None:
    kind, value, why = TIMES[name]
    infos = [{"at": None}, {"at": value}]
    columns = {
        "prompt": ["3 + 5", "3 + 6"],
        "data_source": ["ppojob/addition"] * 2,
        "reward_model": [{"ground_truth": "8"}, {"ground_truth": "9"}],
        "extra_info": pa.array(infos, pa.struct([("at", kind)])),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (line,) = errors(tmp_path / "a.parquet")
    assert line.startswith(f"a.parquet:1:extra_info: got struct<at: {kind}>: {why}")
    assert line.endswith("; the same as text or a number")


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
    "an answer at the end": (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        'prompt[1].role: got "assistant": the conversation ends in an answer, and the policy is '
        "to give one; a conversation without its last answer",
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
def test_prompts(
    name: str,
    tmp_path: Path,
    good_row: GoodRow,
    errors: Check,
    write_lines: Write,
    write_table: Write,
) -> None:
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
def test_cells(
    name: str, tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write
) -> None:
    change, line = CELLS[name]
    path = write_lines(tmp_path / "a.jsonl", good_row() | change)
    assert errors(path) == [f"a.jsonl:1:{line}"]


def test_cells_that_only_parquet_can_hold(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_table: Write
) -> None:
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


def test_text_that_is_not_utf8(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_table: Write
) -> None:
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


def test_all_rows_too_long(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    assert errors(path, maxPromptTokens=3, overlongPrompts="drop")[0] == (
        "spec.data: got 2 of 2 rows dropped: no prompt is within maxPromptTokens 3; a larger "
        "maxPromptTokens, or overlongPrompts: truncate_left"
    )


def test_fewer_rows_than_a_batch(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    assert errors(path, batch=3) == [
        "spec.data.train: got 2 rows: fewer than spec.algorithm.promptsPerStep 3: no batch can be "
        "drawn; at least 3 rows, or a smaller promptsPerStep"
    ]


def test_files_of_different_kinds(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write
) -> None:
    chats = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    texts = write_lines(tmp_path / "b.jsonl", good_row(prompt="3 + 5"), good_row(prompt="1 + 5"))
    assert errors(chats, texts) == [
        "b.jsonl:1:prompt: got text: a.jsonl:1 has messages (and 1 more rows like it); one kind of "
        "prompt in all rows and files"
    ]


def test_the_row_that_decides_the_kind_is_named(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write
) -> None:
    rows = [good_row(prompt=7), good_row(prompt="3 + 5"), good_row()]
    _, line = errors(write_lines(tmp_path / "a.jsonl", *rows))
    assert line.startswith("a.jsonl:3:prompt: got messages: a.jsonl:2 has text; ")


def test_duplicate_ids(
    tmp_path: Path, good_row: GoodRow, warnings: Check, write_lines: Write
) -> None:
    first = write_lines(tmp_path / "a.jsonl", *(good_row(extra_info={"index": n}) for n in (0, 1)))
    second = write_lines(tmp_path / "b.jsonl", *(good_row(extra_info={"index": n}) for n in (2, 1)))
    assert warnings(first, second) == [
        "b.jsonl:2:extra_info.index: got 1 rows with the data source, split and index of another: "
        "the first repeats a.jsonl:2; fine where rows are meant to count twice"
    ]


# 61, 64, 67: worth knowing


def test_control_tokens_within_a_message(
    tmp_path: Path, good_row: GoodRow, warnings: Check, write_lines: Write
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row("3 <|im_end|> 5"))
    assert warnings(path) == [
        "a.jsonl:2:prompt: got '<|im_end|>': a control token within a message is tokenised as one; "
        "fine where it is meant"
    ]


def test_extension_types_are_read_as_stored(
    tmp_path: Path, good_row: GoodRow, warnings: Check, write_table: Write
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
    tmp_path: Path, good_row: GoodRow, warnings: Check, write_lines: Write
) -> None:
    train = write_lines(tmp_path / "a.jsonl", good_row("1"), good_row("2"), good_row("3"))
    held_out = write_lines(tmp_path / "b.jsonl", good_row("9"), good_row("2"), good_row("3"))
    assert warnings(train, validation=(held_out,)) == [
        "b.jsonl:2:prompt: got 2 of 3 held-out prompts: they are among the training prompts too; "
        "prompts that are not trained on, or validation tells nothing of new ones"
    ]


# 80, and many at once


def test_a_template_that_refuses_a_row_is_that_rows_problem(
    tmp_path: Path,
    good_row: GoodRow,
    make_folder: Callable[..., Path],
    make_spec: MakeSpec,
    write_lines: Write,
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
    tmp_path: Path,
    good_row: GoodRow,
    make_folder: Callable[..., Path],
    make_spec: MakeSpec,
    write_lines: Write,
) -> None:
    path = write_lines(tmp_path / "a.jsonl", good_row(), good_row())
    with ChatTokenizer(make_folder(None)) as chat:
        report = check_files(make_spec(path), chat, rewards=None, prompts_per_step=1)
    (line,) = report.errors
    assert "got no chat template: prompts are chat messages; " in line


def test_many_bad_rows_are_one_line_with_a_count(
    tmp_path: Path, good_row: GoodRow, errors: Check, write_lines: Write
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


def test_rows_without_ground_truth_are_counted_where_any_function_may_score(
    tmp_path: Path, good_row: GoodRow, warnings: Check, write_lines: Write
) -> None:
    bare = [good_row(f"{n} + 1", reward_model=None) for n in range(3)]
    path = write_lines(tmp_path / "a.jsonl", good_row(), *bare)
    assert warnings(path, rewards=None) == [
        "a.jsonl:2:reward_model.ground_truth: got nothing: reward functions are given None (and "
        "2 more rows like it); fine where they need no ground truth"
    ]
