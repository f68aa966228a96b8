import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ppojob_trainer.errors import DamagedCheckpoint, StorageError
from ppojob_trainer.metrics import names
from ppojob_trainer.metrics.event_files import TensorBoard
from ppojob_trainer.metrics.sinks import JsonLines, encode_line


def clock() -> float:
    return 1000.5


def read(path: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def sink(tmp_path: Path) -> JsonLines:
    return JsonLines(tmp_path / "metrics.jsonl", clock=clock)


@given(st.dictionaries(st.text(max_size=5), st.floats(), max_size=5))
@example({"nan": math.nan, "inf": math.inf, "low": -math.inf, "x": 0.1})
def test_any_metrics_make_one_json_line(metrics):
    metrics = {f"m/{name}": value for name, value in metrics.items()}
    line = encode_line(3, 1.5, metrics)
    assert b"\n" not in line
    found = json.loads(line, parse_constant=lambda text: pytest.fail(f"not JSON: {text}"))
    assert (found.pop("step"), found.pop("time")) == (3, 1.5)
    assert found.keys() == metrics.keys()
    for name, value in metrics.items():
        assert found[name] == (value if math.isfinite(value) else None)


def test_cut_after_and_write_again_equals_undisturbed(tmp_path: Path):
    undisturbed = JsonLines(tmp_path / "a", clock=clock)
    rewound = JsonLines(tmp_path / "b", clock=clock)
    for step in range(6):
        undisturbed.write(step, {"x": step / 3})
    for step in (*range(5), 3, 4, 5):
        if step == 3:
            rewound.cut_after(2)
        rewound.write(step, {"x": step / 3})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("last", [-1, 0, 2, 9])
def test_cut_after_keeps_the_steps_up_to(sink: JsonLines, last: int):
    sink.cut_after(last)
    for step in range(4):
        sink.write(step, {})
    sink.cut_after(last)
    sink.cut_after(last)
    assert [line["step"] for line in read(sink.path)] == list(range(min(last, 3) + 1))


def test_cut_after_takes_a_torn_tail_along(sink: JsonLines):
    sink.write(1, {})
    with sink.path.open("ab") as file:
        file.write(b'{"step": 2, "ti')
    sink.cut_after(5)
    assert [line["step"] for line in read(sink.path)] == [1]


@pytest.mark.parametrize("line", [b"", b"x", b"{}", b'{"step":"1"}', b'{"step":0}'])
def test_a_foreign_line_is_named(sink: JsonLines, line: bytes):
    sink.write(1, {})
    with sink.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DamagedCheckpoint, match=r"^metrics\.jsonl:2: "):
        sink.cut_after(1)


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write(board: TensorBoard, steps: range, value: float) -> None:
    for step in steps:
        board.write(step, {"x": value})


def test_tensorboard_reads_what_was_written(tmp_path: Path):
    sink = TensorBoard(tmp_path / "tb", clock=clock)
    for step in range(3):
        sink.write(step, {"actor/loss": step / 4, "bad": math.nan})
    sink.close()
    assert scalars(tmp_path / "tb", "actor/loss") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert EventAccumulator(str(tmp_path / "tb")).Reload().Tags()["scalars"] == ["actor/loss"]


def test_tensorboard_forgets_what_was_thrown_away(tmp_path: Path):
    sink = TensorBoard(tmp_path, clock=clock)
    write(sink, range(5), 1.0)
    sink.cut_after(2)
    write(sink, range(3, 6), 2.0)
    sink.close()
    assert scalars(tmp_path, "x") == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]


def test_tensorboard_after_a_kill_in_the_middle_of_a_record(tmp_path: Path):
    first = TensorBoard(tmp_path, clock=clock)
    write(first, range(4), 1.0)
    first.close()
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 5)
    second = TensorBoard(tmp_path, clock=clock)
    second.cut_after(1)
    write(second, range(2, 4), 2.0)
    second.close()
    assert scalars(tmp_path, "x") == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]
    assert sorted(os.listdir(tmp_path))[1] == "events.out.tfevents.0000000002.ppojob"


def test_tensorboard_says_which_folder_is_full(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    sink = TensorBoard(tmp_path, clock=clock)
    with open("/dev/full", "wb", buffering=0) as full:
        sink._file = full
        with pytest.raises(StorageError, match="No space left on device"):
            sink.write(1, {"x": 1.0})


def test_each_name_is_there_once_and_finds_itself():
    listed = [metric.name for metric in names.METRICS]
    assert len(listed) == len(set(listed))
    for metric in names.METRICS:
        key = metric.name.replace("<moment>", "mean").replace("<n>", "8")
        key = key.replace("<mode>", "seq_mean_k1")
        found = names.find(key.replace("<", "").replace(">", ""))
        assert found.name == metric.name
    assert names.find("actor/unheard_of") is None
    assert names.find("val-core/a/b/acc/mean@1") is not None
