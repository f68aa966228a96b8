from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_cli.run_state import RunReader, RunState, StepRecord
from ppojob_trainer.controller.progress import STATUS_FILE, RunStatus
from ppojob_trainer.metrics.sinks import encode_line


def steps(state: RunState) -> list[int]:
    return [record.step for record in state.records]


def test_a_run_as_it_grows(run, tmp_path: Path) -> None:
    assert RunReader(tmp_path / "none").read() == RunState()
    reader = RunReader(run.folder)
    run.validation(0.36)
    assert steps(reader.read()) == [0]
    run.status(step=1, stage="gen")
    run.step(1)
    run.step(2)
    state = reader.read()
    assert steps(state) == [0, 1, 2]
    assert (state.status.phase, state.done_steps) == ("Training", 2)
    assert [record.step for record in state.steps] == [1, 2]
    assert "actor/grad_norm" not in state.steps[0].values, "which is null there"
    assert reader.read().records is state.records, "nothing new is nothing read"


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
    run.metrics.unlink()
    assert steps(reader.read()) == []


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[1]", b"nonsense", b"\xff\xfe", b'{"step":"1"}', b'{"step":null}', b"{"]
)
def test_what_is_no_metrics_line_is_left_out(run, line: bytes) -> None:
    run.step(1)
    with run.metrics.open("ab") as file:
        file.write(line + b"\n")
        file.write(b'{"step":2,"time":1.5,"note":"x","a/b":2,"list":[1]}\n')
    first, second = RunReader(run.folder).read().records
    assert first.step == 1
    assert second == StepRecord(2, 1.5, {"a/b": 2.0})


@pytest.mark.parametrize("data", [b"", b"{", b'{"phase":1}', b"\xff", b"[]"])
def test_a_status_that_cannot_be_read(run, data: bytes) -> None:
    (run.folder / STATUS_FILE).write_bytes(data)
    assert RunReader(run.folder).read().status == RunStatus("Starting")


def test_the_status_of_an_earlier_run_is_not_believed(run) -> None:
    run.status("Succeeded", since=999.0)
    assert RunReader(run.folder, since=1_000.0).read().status.phase == "Starting"
    run.status("Training", since=1_000.5)
    assert RunReader(run.folder, since=1_000.0).read().status.phase == "Training"


def training(*records: StepRecord, phase: str = "Training") -> RunState:
    return RunState(RunStatus(phase, total_steps=20), records)


def test_the_step_under_way_counts_down_and_never_below_its_end() -> None:
    state = training(StepRecord(18, 180.0, {"timing_s/step": 10.0}))
    assert state.remaining_seconds(184.0) == 16.0
    assert state.remaining_seconds(10_000.0) == 10.0
    assert state.remaining_seconds(0.0) == 20.0, "a clock that was set back"


@pytest.mark.parametrize(
    "state",
    [
        RunState(records=(StepRecord(1, 1.0, {"timing_s/step": 10.0}),)),
        training(),
        training(StepRecord(0, 1.0, {})),
        training(StepRecord(20, 1.0, {"timing_s/step": 10.0})),
        training(StepRecord(3, 1.0, {"timing_s/step": 10.0}), phase="Interrupted"),
    ],
)
def test_nobody_knows_how_long_it_takes(state: RunState) -> None:
    assert state.remaining_seconds(1e9) is None


def test_names_of_validations_and_stages_by_their_length() -> None:
    record = StepRecord(
        1,
        0.0,
        {
            "val-core/openai/gsm8k/acc/mean@4": 0.5,
            "val-core/openai/gsm8k/acc/best@4/mean": 0.75,
            "val-core/openai/gsm8k/acc/best@4/std": 0.1,
            "val-aux/openai/gsm8k/reward/mean@4": 0.5,
            "timing_s/step": 9.0,
            "timing_s/gen": 3.0,
            "timing_s/update_actor": 5.0,
            "timing_s/unaccounted": 1.0,
            "timing_s/agent_loop/tool_calls/mean": 7.0,
        },
    )
    assert record.validation == {"openai/gsm8k mean@4": 0.5, "openai/gsm8k best@4": 0.75}
    assert record.stage_seconds == [("update_actor", 5.0), ("gen", 3.0)]


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=25))
def test_looking_again_and_again_sees_what_one_look_sees(tmp_path_factory, moves):
    """A number appends that many steps; 0 cuts half of the file away; not each move is seen."""
    path = tmp_path_factory.mktemp("run")
    metrics = path / "metrics.jsonl"
    reader, lines, clock = RunReader(path), [], 0
    for move, is_seen in moves:
        if move == 0:
            lines = lines[: len(lines) // 2]
        for _ in range(move):
            clock += 1
            lines.append(encode_line(len(lines) + 1, float(clock), {"a": 0.5}) + b"\n")
        metrics.write_bytes(b"".join(lines))
        if is_seen:
            assert reader.read() == RunReader(path).read()
            assert len(reader.read().records) == len(lines)
