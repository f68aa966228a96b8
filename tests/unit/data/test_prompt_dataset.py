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
from prompt_files import PromptFiles, Row, SumsOnly, encode_chat, good_row
from small_disks import small_disk

from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.data.scan import truncate
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


def test_files_of_both_formats_are_one_data_set(files: PromptFiles, mixed: list[Path]) -> None:
    with files.open(*mixed) as dataset:
        assert len(dataset) == 23
        for number in random.Random(0).sample(range(23), 23):
            prompt = ROWS[number]["prompt"]
            tokens = tuple(encode_chat(files.chat, prompt))  # type: ignore[arg-type]
            assert dataset[number] == PromptRow(
                number,
                tokens,
                prompt,  # type: ignore[arg-type]
                "ppojob/addition",
                str(number + 5),
                {"index": number},
            )
        assert [row.index for row in dataset.rows([22, 3, 3, 12])] == [22, 3, 3, 12]
        assert dataset.warnings == []
        for outside in (23, -1):
            with pytest.raises(IndexError):
                dataset[outside]


def test_the_first_rows_only(files: PromptFiles, mixed: list[Path]) -> None:
    for most in (1, 12, 99):
        with files.open(*mixed, max_rows=most) as dataset:
            last = min(most, 23) - 1
            assert len(dataset) == last + 1
            assert dataset[last].extra_info == {"index": last}


def test_a_folder_and_a_pattern_are_their_files_by_name(files: PromptFiles) -> None:
    (files.folder / "rows").mkdir()
    files.lines("rows/b.jsonl", *ROWS[5:8])
    files.table("rows/a.parquet", *ROWS[:5])
    files.raw("rows/README.md", b"rows")
    files.raw("rows/.hidden.jsonl", b"")
    files.raw("rows/c.json", json.dumps(ROWS[8:10], indent=1).encode())
    for path, expected in (("rows/", range(10)), ("rows/[bc].json*", range(5, 10))):
        spec = DataSpec(train=(DataFile(path=f"{files.folder}/{path}"),))
        with PromptDataset.open(spec.train, spec, files.chat) as dataset:
            found = [row.extra_info["index"] for row in dataset.rows(range(len(dataset)))]
            assert found == list(expected)


def test_endings_are_known_in_capitals_as_well(files: PromptFiles) -> None:
    """The rule for paths takes them."""
    (files.folder / "rows").mkdir()
    path = files.lines("rows/A.JSONL", *ROWS[:3])
    for named in (f"{path}", f"{path.parent}/"):
        spec = files.spec(named)
        with PromptDataset.open(spec.train, spec, files.chat) as dataset:
            assert len(dataset) == 3


def drawn(dataset: PromptDataset, spec: DataSpec, batch: int, count: int) -> list[list[object]]:
    order = dataset.order(spec, batch)
    return [
        [row.extra_info["index"] for row in dataset.rows(order.next_batch(batch))]
        for _ in range(count)
    ]


def test_files_have_their_share_of_every_batch(files: PromptFiles, mixed: list[Path]) -> None:
    train = [
        {"path": str(mixed[0]), "weight": 1, "maxRows": 3},
        {"path": str(mixed[1]), "weight": 2},
        {"path": str(mixed[2]), "weight": 1},
    ]
    spec = DataSpec.model_validate({"train": train})
    with PromptDataset.open(spec.train, spec, files.chat) as dataset:
        assert len(dataset) == 3 + 5 + 8
        batches = drawn(dataset, spec, 4, 12)
        for batch in batches:
            of_files = [sum(low <= index < high for index in batch) for low, high in EDGES]
            assert of_files == [1, 2, 1]
        assert {index for batch in batches for index in batch} == {0, 1, 2, *range(10, 23)}
        with pytest.raises(ConfigError, match=r"train\[1\].weight: got 2.0 for .*: 8 of"):
            dataset.order(spec, 16)


EDGES = ((0, 10), (10, 15), (15, 23))


@pytest.mark.parametrize("place", ["column", "extra_info"])
def test_rows_come_by_difficulty(files: PromptFiles, place: str) -> None:
    levels = [3, 1, 2.5, 1, 0, 3]
    rows = [
        {**good_row(str(number), extra_info={"index": number}), "level": level}
        if place == "column"
        else good_row(str(number), extra_info={"index": number, "level": level})
        for number, level in enumerate(levels)
    ]
    path = files.table("a.parquet", *rows)
    for order, expected in (("ascending", sorted(levels)), ("descending", sorted(levels)[::-1])):
        spec = files.spec(path, curriculum={"key": "level", "order": order})
        with PromptDataset.open(spec.train, spec, files.chat) as dataset:
            batches = drawn(dataset, spec, 3, 2)
        assert [levels[index] for batch in batches for index in batch] == expected  # type: ignore[call-overload]


def test_files_without_weights_are_one_curriculum(files: PromptFiles) -> None:
    paths = [
        files.table(
            f"{name}.parquet",
            *(
                {**good_row(f"{name}{level}", extra_info={"index": level}), "l": level}
                for level in levels
            ),
        )
        for name, levels in (("a", (4, 0, 2)), ("b", (1, 5, 3)))
    ]
    spec = files.spec(*paths, curriculum={"key": "l"})
    with PromptDataset.open(spec.train, spec, files.chat) as dataset:
        assert drawn(dataset, spec, 2, 3) == [[0, 1], [2, 3], [4, 5]]


def test_rows_of_a_validation_need_no_difficulty(files: PromptFiles) -> None:
    train = files.table("a.parquet", {**good_row("1"), "level": 1}, {**good_row("2"), "level": 0})
    validation = files.table("b.parquet", good_row("3"))
    spec = files.spec(train, curriculum={"key": "level"}, validation=[{"path": str(validation)}])
    report = check_files(spec, files.chat, rewards=SumsOnly(), draw=("promptsPerStep", 1))
    assert report.errors == []
    with PromptDataset.open(spec.validation, spec.of_validation, files.chat) as dataset:
        assert len(dataset) == 1


def test_the_order_of_files_and_what_is_left_of_them_is_in_the_digest(files, mixed) -> None:
    def digest(**settings: object) -> str:
        train = [{"path": str(mixed[0])}, {"path": str(mixed[1])}]
        for name, values in settings.items():
            train = [one | {name: value} for one, value in zip(train, values, strict=True)]
        spec = DataSpec.model_validate({"train": train})
        with PromptDataset.open(spec.train, spec, files.chat) as dataset:
            return dataset.digest

    assert digest(maxRows=[3, 4]) != digest(maxRows=[4, 3])


def test_text_prompts_get_no_template(files: PromptFiles) -> None:
    text = "User: 3 + 5\nAssistant:"
    with files.open(files.table("a.parquet", good_row(prompt=text))) as dataset:
        assert dataset[0].token_ids == tuple(files.chat.encode(text))


def test_columns_may_have_other_names(files: PromptFiles) -> None:
    path = files.table("a.parquet", {"question": "3 + 5", "task": "mine"})
    with files.open(path, promptKey="question", dataSourceKey="task") as dataset:
        assert (dataset[0].data_source, dataset[0].ground_truth) == ("mine", None)


@pytest.mark.parametrize("form", ["table", "lines"])
def test_the_task_of_a_row_goes_before_that_of_all_rows(files, form) -> None:
    rows = good_row(data_source="mine"), good_row(data_source=None)
    path = getattr(files, form)(f"a.{'parquet' if form == 'table' else 'jsonl'}", *rows)
    with files.open(path, dataSource="sums") as dataset:
        assert [row.data_source for row in dataset.rows(range(2))] == ["mine", "sums"]


@pytest.mark.parametrize("form", ["table", "lines"])
def test_files_as_people_have_them(files, form) -> None:
    """A question and an answer; whatever else there is goes along, but what is no JSON."""
    row = {"question": "3 + 5", "answer": "8", "level": 2, "more": {"a": [1]}, "picture": "x"}
    keys = {"promptKey": "question", "answerKey": "answer", "dataSource": "sums"}
    if form == "table":
        path = files.table("a.parquet", {**row, "picture": b"\xff"})
        expected = {"level": 2, "more": {"a": [1]}}
    else:
        path = files.lines("a.jsonl", row)
        expected = {"level": 2, "more": {"a": [1]}, "picture": "x"}
    with files.open(path, **keys) as dataset:
        found = dataset[0]
        assert (found.prompt, found.data_source, found.ground_truth) == ("3 + 5", "sums", "8")
        assert found.extra_info == expected
        raw = found.token_ids
        digest = dataset.digest
    with files.open(path, **keys, textPrompts="user_message") as dataset:
        message = [{"role": "user", "content": "3 + 5"}]
        assert dataset[0].prompt == message
        assert dataset[0].token_ids == tuple(encode_chat(files.chat, message)) != raw
        assert dataset.digest != digest


def test_a_struct_of_lists_is_a_list_of_messages(files: PromptFiles) -> None:
    prompt = {"role": ["user", "assistant", "user"], "content": ["a", "b", "c"]}
    turns = [{"role": r, "content": c} for r, c in zip(*prompt.values(), strict=True)]
    with files.open(files.table("a.parquet", good_row(prompt=prompt))) as dataset:
        assert dataset[0].token_ids == tuple(encode_chat(files.chat, turns))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("truncate_left", (3, 4, 5, 6, 7)),
        ("truncate_right", (1, 2, 3, 4, 5)),
        ("truncate_middle", (1, 2, 5, 6, 7)),
    ],
)
def test_truncation_as_verl_cuts(policy: str, expected: tuple[int, ...]) -> None:
    assert truncate([1, 2, 3, 4, 5, 6, 7], 5, policy) == expected
    assert truncate([1, 2, 3], 5, policy) == (1, 2, 3)


@pytest.fixture
def lengths(files: PromptFiles) -> Path:
    texts = ["1", "1 + 2 + 3 + 4 + 5 + 6 + 7", "2", "1 + 2 + 3 + 4 + 5 + 6 + 7 + 8", "3"]
    return files.lines("lengths.jsonl", *map(good_row, texts))


def test_long_prompts_are_dropped(files: PromptFiles, lengths: Path) -> None:
    with files.open(lengths, maxPromptTokens=12, overlongPrompts="drop") as dataset:
        assert len(dataset) == 3
        assert [dataset[index].index for index in range(3)] == [0, 1, 2]
        short = [good_row(text)["prompt"] for text in ("1", "2", "3")]
        assert [dataset[index].prompt for index in range(3)] == short
        assert all(len(dataset[index].token_ids) <= 12 for index in range(3))


def test_what_is_dropped_is_told_at_every_start(files, lengths, mixed) -> None:
    settings = {"maxPromptTokens": 12, "overlongPrompts": "drop"}
    warnings = files.report(lengths, *mixed, **settings).warnings
    assert warnings[0].startswith(f"{lengths} and 3 more files: got 25 of 28 rows: ")
    with files.open(lengths, *mixed, **settings) as dataset:
        assert dataset.warnings == warnings


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_right", "truncate_middle"])
def test_long_prompts_are_cut(policy: str, files: PromptFiles, lengths: Path) -> None:
    with files.open(lengths, maxPromptTokens=12, overlongPrompts=policy) as dataset:
        assert len(dataset) == 5
        assert all(len(dataset[index].token_ids) <= 12 for index in range(5))
        assert len(dataset[1].token_ids) == 12


def test_digest_tells_contents_and_settings_apart(files: PromptFiles, mixed: list[Path]) -> None:
    def digest(*paths: Path, **settings: object) -> str:
        with files.open(*paths, **settings) as dataset:
            return dataset.digest

    first = digest(*mixed)
    assert digest(*mixed) == first
    assert digest(*mixed, maxPromptTokens=100) != first
    assert digest(*mixed[::-1]) != first
    mixed[1].write_text(mixed[1].read_text().replace("10 + 5", "10 + 6"))
    assert digest(*mixed) != first


def test_categorical_columns_are_their_values(files) -> None:
    texts = [f"{number} " + "x" * 2_000 for number in range(129)]
    words = pa.array(texts).dictionary_encode()
    nested = pa.ListArray.from_arrays(range(130), words)
    columns = {
        "prompt": ["3 + 5"] * 129,
        "data_source": pa.array(["mine"] * 129).dictionary_encode(),
        "extra_info": pa.StructArray.from_arrays([words, nested], ["document", "documents"]),
    }
    with files.open(files.columns("a.parquet", pa.table(columns))) as dataset:
        for row in dataset.rows([128, 0, 70]):
            text = texts[row.index]
            assert row.extra_info == {"document": text, "documents": [text]}
            assert row.data_source == "mine"


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
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
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
    with PromptDataset.open(spec.train, spec, chat) as dataset:
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
@pytest.mark.parametrize("form", ["jsonl", "one row group", "small row groups"])
def test_a_file_of_300_mb_is_never_in_memory(form, tmp_path, make_folder) -> None:
    count = 30_000
    if form == "jsonl":
        path = tmp_path / "large.jsonl"
        with path.open("w") as file:
            for row in many_rows(count):
                file.write(json.dumps(row) + "\n")
    else:
        path = tmp_path / "large.parquet"
        table = pa.Table.from_pylist(list(many_rows(count)))
        group = count if form == "one row group" else 1000
        pq.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)
    assert path.stat().st_size > 300_000_000
    command = [sys.executable, "-c", MEASURE, str(make_folder()), str(path), str(count)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 <= int(told.stdout) < 100_000_000
