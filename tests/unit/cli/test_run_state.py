"""What the reader makes of a run folder in every state in which a run may leave it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_cli.run_state import RunReader, RunState, StepRecord, step_record
from ppojob_trainer.controller.progress import STATUS_FILE, TrainingStatus
from ppojob_trainer.metrics.sinks import encode_line


def steps(state: RunState) -> list[int]:
    return [record.step for record in state.records]


def test_no_folder_at_all(tmp_path: Path) -> None:
    state = RunReader(tmp_path / "none").read()
    assert state == RunState()
    assert (state.phase, state.done_steps, state.total_steps) == ("Starting", 0, 0)


def test_a_run_as_it_grows(run) -> None:
    reader = RunReader(run.folder)
    run.validation(0.36)
    assert steps(reader.read()) == [0]
    run.status(step=1, stage="gen")
    run.step(1)
    run.step(2)
    state = reader.read()
    assert steps(state) == [0, 1, 2]
    assert (state.phase, state.done_steps, state.total_steps) == ("Training", 2, 20)
    assert [record.step for record in state.steps] == [1, 2]
    assert reader.read().records is state.records, "nothing new is nothing read"


def test_nan_is_null_is_absent(run) -> None:
    run.step(1)
    assert b'"actor/grad_norm":null' in run.metrics.read_bytes()
    (record,) = RunReader(run.folder).read().records
    assert "actor/grad_norm" not in record.values


def test_a_torn_last_line_waits_for_its_end(run) -> None:
    run.step(1)
    line = encode_line(2, 5.0, {"critic/score/mean": 0.25}) + b"\n"
    reader = RunReader(run.folder)
    with run.metrics.open("ab", buffering=0) as file:
        for end in range(1, len(line)):
            file.write(line[end - 1 : end])
            assert steps(reader.read()) == [1]
        file.write(line[-1:])
    assert steps(reader.read()) == [1, 2]


def test_a_rewind_is_seen_behind_lines_that_came_since(run) -> None:
    reader = RunReader(run.folder)
    for step in range(1, 5):
        run.step(step)
    reader.read()
    run.cut(2)
    for step in (3, 4, 5):
        run.line(step, {"critic/score/mean": 0.75}, time=5_000.0 + step)
    state = reader.read()
    assert steps(state) == [1, 2, 3, 4, 5]
    assert state.figure_series()["reward"] == [0.5, 0.5, 0.75, 0.75, 0.75]


def test_a_file_that_goes_away(run) -> None:
    run.step(1)
    reader = RunReader(run.folder)
    reader.read()
    run.metrics.unlink()
    assert steps(reader.read()) == []


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[1]", b"nonsense", b"\xff\xfe", b'{"step":"1"}', b'{"step":null}', b"{"]
)
def test_what_is_no_metrics_line_is_left_out(run, line: bytes) -> None:
    run.step(1)
    with run.metrics.open("ab") as file:
        file.write(line + b"\n")
    run.step(2)
    assert steps(RunReader(run.folder).read()) == [1, 2]


def test_texts_in_a_line_do_no_harm() -> None:
    record = step_record(b'{"step":3,"time":1.5,"note":"x","a/b":2,"list":[1],"flag":true}')
    assert (record.step, record.time, record.values["a/b"]) == (3, 1.5, 2.0)
    assert "note" not in record.values
    assert "list" not in record.values


@pytest.mark.parametrize("data", [b"", b"{", b'{"phase":1}', b"\xff", b"[]"])
def test_a_status_that_cannot_be_read(run, data: bytes) -> None:
    (run.folder / STATUS_FILE).write_bytes(data)
    assert RunReader(run.folder).read().status is None


def test_the_status_of_an_earlier_run_is_not_believed(run) -> None:
    run.status("Succeeded", since=999.0)
    assert RunReader(run.folder, since=1_000.0).read().status is None
    run.status("Starting", since=1_000.5)
    assert RunReader(run.folder, since=1_000.0).read().phase == "Starting"


def record(step: int, *, time: float | None = None, seconds: float = 10.0) -> StepRecord:
    at = 10.0 * step if time is None else time
    return StepRecord(step, at, {"timing_s/step": seconds})


def training(records: list[StepRecord], phase: str = "Training") -> RunState:
    return RunState(TrainingStatus(phase, total_steps=20), tuple(records))


class TestRemaining:
    def test_the_step_under_way_counts_down_and_never_below_its_end(self) -> None:
        state = training([record(18)])
        assert state.remaining_seconds(184.0) == 16.0
        assert state.remaining_seconds(10_000.0) == 10.0
        assert state.remaining_seconds(0.0) == 20.0, "a clock that was set back"

    @pytest.mark.parametrize(
        "state",
        [
            RunState(),
            RunState(None, (record(1),)),
            training([]),
            training([StepRecord(0, 1.0, {})]),
            training([record(20)]),
            training([record(3)], "Interrupted"),
        ],
    )
    def test_nobody_knows(self, state: RunState) -> None:
        assert state.remaining_seconds(1e9) is None


def test_names_of_validations() -> None:
    values = {
        "val-core/openai/gsm8k/acc/mean@4": 0.5,
        "val-core/openai/gsm8k/acc/best@4/mean": 0.75,
        "val-core/openai/gsm8k/acc/best@4/std": 0.1,
        "val-aux/openai/gsm8k/reward/mean@4": 0.5,
    }
    found = StepRecord(1, 0.0, values).validation
    assert found == {"openai/gsm8k mean@4": 0.5, "openai/gsm8k best@4": 0.75}


def test_stages_by_their_length() -> None:
    values = {"timing_s/step": 9.0, "timing_s/gen": 3.0, "timing_s/update_actor": 5.0}
    values["timing_s/agent_loop/tool_calls/mean"] = 7.0
    stages = StepRecord(1, 0.0, {**values, "timing_s/unaccounted": 1.0}).stage_seconds
    assert stages == [("update_actor", 5.0), ("gen", 3.0)]


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.integers(0, 6), max_size=25))
def test_looking_again_and_again_sees_what_one_look_sees(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int]
) -> None:
    """A number appends that many steps; 0 cuts half of the file away."""
    path = tmp_path_factory.mktemp("run")
    metrics = path / "metrics.jsonl"
    reader, lines, clock = RunReader(path), [], 0
    for move in moves:
        if move == 0:
            lines = lines[: len(lines) // 2]
        for _ in range(move):
            clock += 1
            lines.append(encode_line(len(lines) + 1, float(clock), {"a": 0.5}) + b"\n")
        metrics.write_bytes(b"".join(lines))
        assert reader.read() == RunReader(path).read()
        assert len(reader.read().records) == len(lines)
