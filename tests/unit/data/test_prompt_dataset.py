import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_prompts import encode_chat
from small_disks import small_disk

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data import parquet_rows
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.dataset import PromptDataset, PromptRow, truncate
from ppojob_trainer.errors import ConfigError, PPOJobError, StorageError

MakeSpec = Callable[..., DataSpec]
GoodRow = Callable[..., dict[str, object]]


def write_parquet(path: Path, rows: list[dict[str, object]], group: int = 1000) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(good_row: GoodRow) -> list[dict[str, object]]:
    return [
        good_row(f"{number} + 5 \u00e9\u4e16", str(number + 5), extra_info={"index": number})
        for number in range(23)
    ]


@pytest.fixture
def mixed(tmp_path: Path, rows: list[dict[str, object]]) -> list[Path]:
    return [
        write_parquet(tmp_path / "a.parquet", rows[:10], group=3),
        write_jsonl(tmp_path / "b.jsonl", rows[10:15]),
        write_parquet(tmp_path / "c.parquet", rows[15:]),
    ]


def test_files_of_both_formats_are_one_data_set(
    mixed: list[Path], rows: list[dict[str, object]], chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    spec = make_spec(*mixed)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert len(dataset) == 23
        for index in random.Random(0).sample(range(23), 23):
            number = index
            assert dataset[index] == PromptRow(
                index,
                tuple(encode_chat(chat, rows[number]["prompt"])),  # type: ignore[arg-type]
                rows[number]["prompt"],  # type: ignore[arg-type]
                "ppojob/addition",
                str(number + 5),
                {"index": number},
            )
        assert [row.index for row in dataset.rows([22, 3, 3, 12])] == [22, 3, 3, 12]
        assert dataset.warnings == []


@pytest.mark.parametrize("index", [23, -1])
def test_rows_outside(
    index: int, mixed: list[Path], chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    spec = make_spec(*mixed)
    with PromptDataset.open(spec.train, spec, chat) as dataset, pytest.raises(IndexError):
        dataset[index]


def test_the_first_rows_only(mixed: list[Path], chat: ChatTokenizer, make_spec: MakeSpec) -> None:
    spec = make_spec(*mixed)
    for most in (1, 12, 99):
        with PromptDataset.open(spec.train, spec, chat, max_rows=most) as dataset:
            assert len(dataset) == min(most, 23)
            last = len(dataset) - 1
            assert dataset[last].extra_info == {"index": last}


def test_text_prompts_get_no_template(
    tmp_path: Path, good_row: GoodRow, chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [good_row(prompt="User: 3 + 5\nAssistant:")])
    spec = make_spec(path)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert dataset[0].token_ids == tuple(chat.encode("User: 3 + 5\nAssistant:"))


def test_columns_may_have_other_names(
    tmp_path: Path, chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"question": "3 + 5", "task": "mine"}])
    spec = make_spec(path, promptKey="question", dataSourceKey="task")
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert (dataset[0].data_source, dataset[0].ground_truth) == ("mine", None)


def test_a_struct_of_lists_is_a_list_of_messages(
    tmp_path: Path, good_row: GoodRow, chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    prompt = {"role": ["user", "assistant", "user"], "content": ["a", "b", "c"]}
    path = write_parquet(tmp_path / "a.parquet", [good_row(prompt=prompt)])
    spec = make_spec(path)
    turns = [{"role": r, "content": c} for r, c in zip(*prompt.values(), strict=True)]
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert dataset[0].token_ids == tuple(encode_chat(chat, turns))


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
def lengths(tmp_path: Path, good_row: GoodRow) -> Path:
    texts = ["1", "1 + 2 + 3 + 4 + 5 + 6 + 7", "2", "1 + 2 + 3 + 4 + 5 + 6 + 7 + 8", "3"]
    return write_jsonl(tmp_path / "a.jsonl", [good_row(text) for text in texts])


def test_long_prompts_are_an_error_by_default(
    lengths: Path, chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    spec = make_spec(lengths, maxPromptTokens=12)
    with pytest.raises(ConfigError) as caught:
        PromptDataset.open(spec.train, spec, chat)
    text = "1 + 2 + 3 + 4 + 5 + 6 + 7"
    tokens = len(encode_chat(chat, [{"role": "user", "content": text}]))
    assert caught.value.problems == (
        f"{lengths}:2:prompt: got {tokens} tokens: longer than spec.data.maxPromptTokens 12 (and 1 "
        "more rows like it); a larger maxPromptTokens, or spec.data.overlongPrompts: drop, "
        "truncate_left, truncate_right or truncate_middle",
    )


def test_long_prompts_are_dropped(
    lengths: Path, chat: ChatTokenizer, make_spec: MakeSpec, good_row: GoodRow
) -> None:
    spec = make_spec(lengths, maxPromptTokens=12, overlongPrompts="drop")
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert len(dataset) == 3
        assert [dataset[index].index for index in range(3)] == [0, 1, 2]
        short = [good_row(text)["prompt"] for text in ("1", "2", "3")]
        assert [dataset[index].prompt for index in range(3)] == short
        assert all(len(dataset[index].token_ids) <= 12 for index in range(3))


def test_what_is_dropped_is_told_at_every_start(
    lengths: Path, mixed: list[Path], chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    spec = make_spec(lengths, *mixed, maxPromptTokens=12, overlongPrompts="drop")
    report = check_files(spec, chat, rewards=None, prompts_per_step=1)
    assert report.warnings == [
        f"{lengths} and 3 more files: got 25 of 28 rows: longer than spec.data.maxPromptTokens 12, "
        "and dropped; fine where it is meant"
    ]
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert dataset.warnings == report.warnings


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_right", "truncate_middle"])
def test_long_prompts_are_cut(
    policy: str, lengths: Path, chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    spec = make_spec(lengths, maxPromptTokens=12, overlongPrompts=policy)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert len(dataset) == 5
        assert [len(dataset[index].token_ids) <= 12 for index in range(5)] == [True] * 5
        assert len(dataset[1].token_ids) == 12


def test_digest_tells_contents_and_settings_apart(
    mixed: list[Path], chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    def digest(*paths: Path, **settings: object) -> str:
        spec = make_spec(*paths, **settings)
        with PromptDataset.open(spec.train, spec, chat) as dataset:
            return dataset.digest

    first = digest(*mixed)
    assert digest(*mixed) == first
    assert digest(*mixed, maxPromptTokens=100) != first
    assert digest(*mixed[::-1]) != first
    mixed[1].write_text(mixed[1].read_text().replace("10 + 5", "10 + 6"))
    assert digest(*mixed) != first


def test_a_large_row_group_is_spilled_and_read_row_by_row(
    tmp_path: Path,
    rows: list[dict[str, object]],
    chat: ChatTokenizer,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_rows, "_CACHED_GROUP_BYTES", 100)
    monkeypatch.setattr(parquet_rows, "_BATCH_ROWS", 4)
    spec = make_spec(write_parquet(tmp_path / "a.parquet", rows, group=15))
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        for index in (22, 0, 14, 15, 7, 3, 4):
            assert dataset[index].extra_info == {"index": index}
    assert [entry.name for entry in tmp_path.iterdir() if "ppojob" in entry.name] == []


def test_a_dictionary_column_may_be_larger_than_a_cell(
    tmp_path: Path,
    chat: ChatTokenizer,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Categorical columns bring all their values with each of their rows."""
    monkeypatch.setattr(parquet_rows, "MAX_CELL_BYTES", 100_000)
    texts = [f"{number} " + "x" * 2_000 for number in range(129)]
    words = pa.array(texts).dictionary_encode()
    nested = pa.ListArray.from_arrays(range(130), words)
    path = tmp_path / "a.parquet"
    columns = {
        "prompt": ["3 + 5"] * 129,
        "data_source": pa.array(["mine"] * 129).dictionary_encode(),
        "extra_info": pa.StructArray.from_arrays([words, nested], ["document", "documents"]),
    }
    pq.write_table(pa.table(columns), path)
    spec = make_spec(path)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        for row in dataset.rows([128, 0, 70]):
            text = texts[row.index]
            assert row.extra_info == {"document": text, "documents": [text]}
            assert row.data_source == "mine"


def test_a_spilled_row_group_may_have_other_categories_in_each_batch(
    tmp_path: Path,
    chat: ChatTokenizer,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_rows, "_CACHED_GROUP_BYTES", 100)
    sources = [f"source{number // 50}" for number in range(200)]
    columns = {"prompt": ["3 + 5"] * 200, "data_source": pa.array(sources).dictionary_encode()}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False)
    spec = make_spec(path)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        assert [row.data_source for row in dataset.rows(range(200))] == sources


def test_a_full_disk_is_no_damaged_file(
    tmp_path: Path, chat: ChatTokenizer, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "_CACHED_GROUP_BYTES", 100)
    columns = {"prompt": ["3 + 5" * 5_000] * 200, "data_source": ["mine"] * 200}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    spec = make_spec(path, maxPromptTokens=100_000)
    with (
        small_disk(tmp_path / "disk", 1) as disk,
        PromptDataset.open(spec.train, spec, chat) as dataset,
    ):
        monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
        with pytest.raises(StorageError, match=f"{disk.folder}/.*: write failed: No space left"):
            dataset.rows([0])
        assert disk.free_bytes > 2**19, "what was written is gone"


def test_a_file_that_changes_after_it_was_read_is_an_error_of_the_job(
    tmp_path: Path, good_row: GoodRow, chat: ChatTokenizer, make_spec: MakeSpec
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [good_row()])
    spec = make_spec(path)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        path.write_bytes(b"\0" * path.stat().st_size)
        with pytest.raises(PPOJobError, match=r"a.parquet:row group 0:prompt: got data that"):
            dataset.rows([0])
        path = write_jsonl(tmp_path / "b.jsonl", [good_row("3")])
    spec = make_spec(path)
    with PromptDataset.open(spec.train, spec, chat) as dataset:
        path.write_text(path.read_text().replace("user", "nous"))
        with pytest.raises(PPOJobError, match=r'b.jsonl:1:prompt\[0\].role: got "nous": unknown'):
            dataset.rows([0])


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


def many_rows(good_row: GoodRow, count: int) -> Iterator[dict[str, object]]:
    chosen = random.Random(0)
    for number in range(count):
        filler = chosen.randbytes(5000).hex()
        yield good_row("3 + 5", extra_info={"index": number, "filler": filler})


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["jsonl", "one row group", "small row groups"])
def test_a_file_of_300_mb_is_never_in_memory(
    form: str, tmp_path: Path, good_row: GoodRow, make_folder: Callable[..., Path]
) -> None:
    count = 30_000
    if form == "jsonl":
        path = tmp_path / "large.jsonl"
        with path.open("w") as file:
            for row in many_rows(good_row, count):
                file.write(json.dumps(row) + "\n")
    else:
        path = tmp_path / "large.parquet"
        table = pa.Table.from_pylist(list(many_rows(good_row, count)))
        group = count if form == "one row group" else 1000
        pq.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)
    assert path.stat().st_size > 300_000_000
    command = [sys.executable, "-c", MEASURE, str(make_folder()), str(path), str(count)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 <= int(told.stdout) < 100_000_000
