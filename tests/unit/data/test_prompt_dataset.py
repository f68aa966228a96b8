import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompt_files import PromptFiles, Row, encode_chat, good_row
from small_disks import small_disk

from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import ConfigError, StorageError

pytestmark = pytest.mark.processes

ROWS = [
    good_row(f"{number} + 5 \u00e9\u4e16", str(number + 5), extra_info={"index": number})
    for number in range(23)
]


@pytest.fixture
def mixed(files: PromptFiles) -> list[Path]:
    return [
        files.table("a.parquet", *ROWS[:10], row_group_size=3),
        files.lines("b.jsonl", *ROWS[10:15]),
        files.table("c.parquet", *ROWS[15:]),
    ]


def all_rows(dataset: PromptDataset) -> list[PromptRow]:
    with dataset:
        return dataset.rows(range(len(dataset)))


def test_files_of_both_formats_are_one_data_set(files: PromptFiles, mixed: list[Path]) -> None:
    with files.open(*mixed) as dataset:
        assert len(dataset) == 23
        for number in random.Random(0).sample(range(23), 23):
            prompt = ROWS[number]["prompt"]
            tokens = tuple(encode_chat(files.chat, prompt))  # type: ignore[arg-type]
            info, answer = {"index": number}, str(number + 5)
            expected = PromptRow(number, tokens, prompt, "ppojob/addition", answer, info)  # type: ignore[arg-type]
            assert dataset[number] == expected
        assert [row.index for row in dataset.rows([22, 3, 3, 12])] == [22, 3, 3, 12]
        assert dataset.warnings == []
        for outside in (23, -1):
            with pytest.raises(IndexError):
                dataset[outside]
    for most in (1, 12, 99):
        found = all_rows(files.open(*mixed, max_train_rows=most))
        assert [row.extra_info["index"] for row in found] == list(range(min(most, 23)))


def test_a_folder_and_a_pattern_are_their_files_by_name(files: PromptFiles) -> None:
    (files.folder / "rows").mkdir()
    files.lines("rows/b.JSONL", *ROWS[5:8])
    files.table("rows/a.parquet", *ROWS[:5])
    files.raw("rows/README.md", b"rows")
    files.raw("rows/.hidden.jsonl", b"")
    files.raw("rows/c.json", json.dumps(ROWS[8:10], indent=1).encode())
    for path, expected in (("rows/", range(10)), ("rows/[bc].[jJ]*", range(5, 10))):
        found = all_rows(files.open(f"{files.folder}/{path}"))
        assert [row.extra_info["index"] for row in found] == list(expected)


def drawn(files: PromptFiles, *paths: Path, batch: int, **settings: object) -> list[list[object]]:
    spec = files.spec(*paths, **settings)
    with files.open(*paths, **settings) as dataset:
        order = dataset.order(spec, batch)
        batches = [dataset.rows(order.next_batch(batch)) for _ in range(12)]
    return [[row.extra_info["index"] for row in batch] for batch in batches]


def test_files_have_their_share_of_every_batch(files: PromptFiles, mixed: list[Path]) -> None:
    weights = [{"weight": 1, "maxRows": 3}, {"weight": 2}, {"weight": 1}]
    train = [{"path": str(path), **own} for path, own in zip(mixed, weights, strict=True)]
    batches = drawn(files, batch=4, train=train)
    edges = ((0, 10), (10, 15), (15, 23))
    for batch in batches:
        assert [sum(low <= index < high for index in batch) for low, high in edges] == [1, 2, 1]  # type: ignore[operator]
    assert {index for batch in batches for index in batch} == {0, 1, 2, *range(10, 23)}
    with pytest.raises(ConfigError, match=r"train\[1\].weight: got 2.0 for .*: 8 of"):
        drawn(files, batch=16, train=train)


@pytest.mark.parametrize("place", ["column", "extra_info"])
def test_rows_of_all_files_come_by_difficulty(files: PromptFiles, place: str) -> None:
    levels = [3, 1, 2.5, 1, 0, 3]
    rows = [good_row(str(n), extra_info={"index": n, "l": level}) for n, level in enumerate(levels)]
    if place == "column":
        rows = [
            {**good_row(str(n), extra_info={"index": n}), "l": level}
            for n, level in enumerate(levels)
        ]
    paths = files.table("a.parquet", *rows[:2]), files.table("b.parquet", *rows[2:])
    for order, expected in (("ascending", sorted(levels)), ("descending", sorted(levels)[::-1])):
        batches = drawn(files, *paths, batch=3, curriculum={"key": "l", "order": order})[:2]
        assert [levels[index] for batch in batches for index in batch] == expected  # type: ignore[call-overload]


def test_rows_of_a_validation_need_no_difficulty(files: PromptFiles) -> None:
    train = files.table("a.parquet", {**good_row("1"), "level": 1}, {**good_row("2"), "level": 0})
    validation = [{"path": str(files.table("b.parquet", good_row("3")))}]
    settings = {"curriculum": {"key": "level"}, "validation": validation}
    assert files.errors(train, **settings) == []  # type: ignore[arg-type]
    spec = files.spec(train, **settings)
    assert len(all_rows(PromptDataset.open(spec.of_validation, files.chat))) == 1


def test_columns_may_have_other_names(files: PromptFiles) -> None:
    path = files.table("a.parquet", {"question": "3 + 5", "task": "mine"})
    with files.open(path, promptKey="question", dataSourceKey="task") as dataset:
        assert (dataset[0].data_source, dataset[0].ground_truth) == ("mine", None)


@pytest.mark.parametrize("form", ["table", "lines"])
def test_the_task_of_a_row_goes_before_that_of_all_rows(files, form) -> None:
    rows = good_row(data_source="mine"), good_row(data_source=None)
    path = getattr(files, form)(f"a.{'parquet' if form == 'table' else 'jsonl'}", *rows)
    found = all_rows(files.open(path, dataSource="sums"))
    assert [row.data_source for row in found] == ["mine", "sums"]


@pytest.mark.parametrize("form", ["table", "lines"])
def test_files_as_people_have_them(files, form) -> None:
    """A question and an answer; other columns go along, but what is no JSON does not."""
    row = {"question": "3 + 5", "answer": "8", "level": 2, "more": {"a": [1]}}
    keys = {"promptKey": "question", "answerKey": "answer", "dataSource": "sums"}
    if form == "table":
        path = files.table("a.parquet", {**row, "image": b"\xff"})
    else:
        path = files.lines("a.jsonl", row)
    with files.open(path, **keys) as dataset:
        tokens = tuple(files.chat.encode("3 + 5"))
        info = {"level": 2, "more": {"a": [1]}}
        assert dataset[0] == PromptRow(0, tokens, "3 + 5", "sums", "8", info)
        digest = dataset.digest
    with files.open(path, **keys, textPrompts="user_message") as dataset:
        message = [{"role": "user", "content": "3 + 5"}]
        assert dataset[0].prompt == message
        assert dataset[0].token_ids == tuple(encode_chat(files.chat, message))
        assert dataset.digest != digest


LONG = "1 + 2 + 3 + 4 + 5 + 6 + 7"


def test_long_prompts_are_dropped_and_told_at_every_start(files: PromptFiles, mixed) -> None:
    lengths = files.lines("lengths.jsonl", *map(good_row, ("1", LONG, "2", f"{LONG} + 8", "3")))
    settings = {"maxPromptTokens": 12, "overlongPrompts": "drop"}
    found = all_rows(files.open(lengths, **settings))
    assert [row.index for row in found] == [0, 1, 2]
    assert [row.prompt for row in found] == [good_row(text)["prompt"] for text in "123"]
    warnings = files.report(lengths, *mixed, **settings).warnings
    assert warnings[0].startswith(f"{lengths} and 3 more files: got 25 of 28 rows: ")
    with files.open(lengths, *mixed, **settings) as dataset:
        assert dataset.warnings == warnings


@pytest.mark.parametrize(
    ("policy", "head", "tail"),
    [("truncate_left", 0, 11), ("truncate_right", 11, 0), ("truncate_middle", 5, 6)],
)
def test_long_prompts_are_cut_as_verl_cuts(files: PromptFiles, policy, head, tail) -> None:
    path = files.lines("a.jsonl", good_row(prompt="1"), good_row(prompt=LONG))
    found = all_rows(files.open(path, maxPromptTokens=11, overlongPrompts=policy))
    short, ids = files.chat.encode("1"), files.chat.encode(LONG)
    assert len(ids) > 11
    cut = (*ids[:head], *ids[len(ids) - tail :])
    assert [row.token_ids for row in found] == [tuple(short), cut]


def test_a_reference_reads_a_prompt_of_its_own(files: PromptFiles) -> None:
    """A column, or an entry of one; with limits of its own, and none in held-out files."""
    hints = [[{"role": "user", "content": f"{text} is 8"}] for text in ("1 + 7", LONG)]
    rows = [
        good_row(text, extra_info={"hint": hint}) for text, hint in zip("12", hints, strict=True)
    ]
    entry = files.table("a.parquet", *rows)
    column = files.lines(
        "b.jsonl", *(good_row(t, hint=h) for t, h in zip("12", hints, strict=True))
    )
    held_out = [{"path": str(files.lines("c.jsonl", good_row("3")))}]
    tokens = [tuple(encode_chat(files.chat, hint)) for hint in hints]
    for path, key in ((entry, "extra_info.hint"), (column, "hint")):
        settings = {"teacherPromptKey": key, "maxTeacherPromptTokens": len(tokens[1])}
        assert files.errors(path, validation=held_out, **settings) == []
        found = all_rows(files.open(path, **settings))
        assert [row.teacher_token_ids for row in found] == tokens
        assert [row.prompt for row in found] == [good_row(text)["prompt"] for text in "12"]
    least = {**settings, "maxTeacherPromptTokens": len(tokens[0])}
    (kept,) = all_rows(files.open(path, **least, overlongPrompts="drop"))
    assert kept.teacher_token_ids == tokens[0]
    _, cut = all_rows(files.open(path, **least, overlongPrompts="truncate_left"))
    assert cut.teacher_token_ids == tokens[1][-len(tokens[0]) :]
    with files.open(path) as plain, files.open(path, **settings) as dataset:
        assert not plain[0].teacher_token_ids
        assert plain.digest != dataset.digest


def test_digest_tells_contents_and_settings_apart(files: PromptFiles, mixed: list[Path]) -> None:
    def digest(paths: list[Path], rows: tuple[int | None, ...] = (), **settings: object) -> str:
        limits = [{"maxRows": most} for most in rows] or [{}] * len(paths)
        train = [{"path": str(path), **own} for path, own in zip(paths, limits, strict=True)]
        with files.open(train=train, **settings) as dataset:
            return dataset.digest

    digests = [
        digest(mixed),
        digest(mixed, maxPromptTokens=100),
        digest(mixed[::-1]),
        digest(mixed, (3, 4, None)),
        digest(mixed, (4, 3, None)),
    ]
    assert len(set(digests)) == 5
    assert digest(mixed) == digests[0]
    mixed[1].write_text(mixed[1].read_text().replace("10 + 5", "10 + 6"))
    assert digest(mixed) != digests[0]


def test_a_full_disk_is_no_damaged_file(files, monkeypatch) -> None:
    columns = {"prompt": ["3 + 5" * 5_000] * 200, "data_source": ["mine"] * 200}
    path = files.columns("a.parquet", pa.table(columns))
    with small_disk(files.folder / "disk", 1) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
        with pytest.raises(StorageError, match=f"{disk.folder}/.*: write failed: No space left"):
            files.open(path, maxPromptTokens=100_000)
        assert disk.free_bytes > 2**19, "what was written is gone"


def test_a_file_that_changes_after_it_was_read_changes_nothing(files) -> None:
    path = files.table("a.parquet", good_row("3 + 4"))
    with files.open(path) as dataset:
        path.write_bytes(b"\0" * path.stat().st_size)
        assert dataset[0].prompt == good_row("3 + 4")["prompt"]
    assert [entry.name for entry in files.folder.iterdir() if "ppojob" in entry.name] == []


# In a process of its own, whose memory nothing else has stretched. The kernel's high-water mark
# also sees what is freed before open() returns.
MEASURE = """
import random, sys
from pathlib import Path
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset

def highest():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

folder, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec = DataSpec.model_validate({"train": [{"path": path}]})
with ChatTokenizer(folder) as chat:
    chat.encode_prompts([[{"role": "user", "content": "3 + 5"}]] * 1000)
    Path("/proc/self/clear_refs").write_text("5")
    before = highest()
    with PromptDataset.open(spec, chat) as dataset:
        for index in random.Random(1).sample(range(count), 200):
            assert dataset[index].extra_info["index"] == index
print(highest() - before)
"""


def many_rows(count: int) -> Iterator[Row]:
    chosen = random.Random(0)
    for number in range(count):
        filler = chosen.randbytes(5000).hex()
        yield good_row("3 + 5", extra_info={"index": number, "filler": filler})


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["jsonl", "one row group"])
def test_a_file_of_150_mb_is_never_in_memory(form, tmp_path, make_folder) -> None:
    count = 15_000
    if form == "jsonl":
        path = tmp_path / "large.jsonl"
        with path.open("w") as file:
            for row in many_rows(count):
                file.write(json.dumps(row) + "\n")
    else:
        path = tmp_path / "large.parquet"
        table = pa.Table.from_pylist(list(many_rows(count)))
        pq.write_table(table, path, row_group_size=count, compression="none", use_dictionary=False)
    assert path.stat().st_size > 150_000_000
    command = [sys.executable, "-c", MEASURE, str(make_folder()), str(path), str(count)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 <= int(told.stdout) < 100_000_000
