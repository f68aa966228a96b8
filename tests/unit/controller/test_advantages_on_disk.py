"""What became of a step's rows, as the run folder tells it."""

import pyarrow.parquet as pq
import pytest
from small_disks import small_disk

from ppojob_trainer.controller.batch import Batch, Origin
from ppojob_trainer.controller.records import Records
from ppojob_trainer.controller.training_step import StepResult
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.metrics.sinks import Sinks
from ppojob_trainer.metrics.step_metrics import Spread
from ppojob_trainer.rpc.messages.training import Advantaged

NONE = Spread(0.0, 0.0, 0.0)


def result(origins: list[Origin] | None = None) -> StepResult:
    prompts = [PromptRow(10 * number, (1,), "a", "b", "c", {}) for number in range(2)]
    batch = Batch("train", prompts, 2, owners=1, scores=[1.0, 2.0, 3.0, 4.0], origins=origins)
    rewards, advantages = [0.5, 1.5, 2.5, 3.5], [-1.0, 1.0, -0.25, 0.25]
    told = Advantaged(rewards, NONE, NONE, 0.0, [], [], row_advantages=advantages)
    return StepResult(batch, told, {})


def test_each_row_has_its_reward_and_its_advantage(tmp_path):
    Records(Sinks(()), tmp_path).keep_advantages(result(), 12)
    rows = pq.read_table(tmp_path / "advantages" / "step-000012.parquet").to_pylist()
    assert [list(row.values()) for row in rows] == [
        [12, 0, 0, 0, 0, 1.0, 0.5, -1.0],
        [12, 0, 1, 0, 1, 2.0, 1.5, 1.0],
        [12, 0, 2, 10, 0, 3.0, 2.5, -0.25],
        [12, 0, 3, 10, 1, 4.0, 3.5, 0.25],
    ]


def test_rows_of_rounds_are_named_as_in_the_files_of_their_rounds(tmp_path):
    origins = [Origin(round=0, position=3, owner=0), Origin(round=2, position=1, owner=0)]
    Records(Sinks(()), tmp_path).keep_advantages(result(origins), 1)
    rows = pq.read_table(tmp_path / "advantages" / "step-000001.parquet").to_pylist()
    assert [(row["round"], row["row"]) for row in rows] == [(0, 6), (0, 7), (2, 2), (2, 3)]


@pytest.mark.processes
def test_a_full_disk_costs_the_file_alone(tmp_path, caplog):
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk.folder / "rest").write_bytes(b"\0" * disk.free_bytes)
        Records(Sinks(()), disk.folder).keep_advantages(result(), 1)
    assert "no advantages of step 1 on the disk" in caplog.text
