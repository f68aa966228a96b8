import logging
import threading

import pytest
from patience import eventually

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_trainer.controller.status_writer import (
    DisownedError,
    NotWrittenError,
    RefusedError,
    StatusWriter,
)

NEVER = 3600.0
AT_ONCE = 0.0


def state(step: int, stage: str = "Training", attempt: int = 1) -> TrainingStatus:
    return TrainingStatus(attempt=attempt, step=step, stage=stage)


class Recipient:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tried: list[TrainingStatus] = []
        self.taken: list[TrainingStatus] = []
        self.is_open = threading.Event()
        self.is_open.set()

    def write(self, one: TrainingStatus) -> None:
        self.tried.append(one)
        self.is_open.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.taken.append(one)

    def wait_for(self, one: TrainingStatus) -> None:
        eventually(lambda: one in self.taken)


def test_offering_never_waits_and_a_state_that_is_out_of_date_is_dropped() -> None:
    recipient = Recipient()
    recipient.is_open.clear()
    writer = StatusWriter(recipient.write, AT_ONCE)
    writer.submit(state(0))
    eventually(lambda: recipient.tried == [state(0)])
    for step in range(1, 1000):
        writer.submit(state(step))
    assert not recipient.taken
    recipient.is_open.set()
    writer.close()
    assert recipient.taken == [state(0), state(999)]


def test_steps_wait_for_their_time_and_turns_do_not() -> None:
    recipient = Recipient()
    writer = StatusWriter(recipient.write, NEVER)
    turns = [state(0, "Starting"), state(0), state(4, "Recovering"), state(2), state(2, attempt=2)]
    for turn in turns:
        writer.submit(turn)
        recipient.wait_for(turn)
        writer.submit(turn.model_copy(update={"reward": 0.5}))
    writer.close()
    last = turns[-1].model_copy(update={"reward": 0.5})
    assert recipient.taken == [*turns, last]


def test_an_outage_is_told_once_and_its_end_as_well(caplog: pytest.LogCaptureFixture) -> None:
    recipient = Recipient(*[NotWrittenError("no answer")] * 5)
    with caplog.at_level(logging.INFO):
        writer = StatusWriter(recipient.write, AT_ONCE)
        for step in (1, 2):
            writer.submit(state(step))
            recipient.wait_for(state(step))
        writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "status.training was not written, the training continues: no answer",
        "status.training is written again",
    ]


def test_a_controller_that_is_not_one_any_more_falls_silent() -> None:
    recipient = Recipient(DisownedError("attempt 3 has taken over"))
    writer = StatusWriter(recipient.write, AT_ONCE)
    writer.submit(state(1))
    eventually(lambda: not recipient.failures)
    writer.submit(state(2, "Finishing"))
    writer.close()
    assert recipient.tried == [state(1)]


def test_the_last_state_does_not_wait_for_a_pause_of_ours() -> None:
    recipient = Recipient(NotWrittenError("no answer"), NotWrittenError("no answer"))
    writer = StatusWriter(recipient.write, NEVER, final_interval=0.01)
    writer.submit(state(1))
    eventually(lambda: len(recipient.failures) == 1)
    writer.close()
    assert recipient.taken == [state(1)]


def test_the_end_is_not_held_up_by_a_cluster_that_has_let_go_of_the_job() -> None:
    recipient = Recipient(*[RefusedError("HTTP 401")] * 9)
    writer = StatusWriter(recipient.write, NEVER)
    writer.submit(state(1))
    eventually(lambda: len(recipient.tried) == 1)
    writer.close(NEVER)
    assert recipient.tried == [state(1), state(1)]
