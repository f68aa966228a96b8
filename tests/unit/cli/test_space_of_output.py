"""Whether a commit fits where a run is to lie: what the next start removes counts as free."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_jobs
from small_disks import SmallDisk, small_disk

from ppojob_api.run_config import RunConfig, resolve
from ppojob_cli.output_checks import check_output
from ppojob_cli.validate import load_job

pytestmark = pytest.mark.processes

MEBI = 2**20
PARAMETERS = MEBI // 2
"""Of a commit of 6 MiB and an export of 1 MiB, in bfloat16."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 16) as made:
        yield made


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return resolve(load_job(tiny_jobs.write_manifest(tmp_path, tmp_path)))


@pytest.mark.parametrize(
    ("left", "fits"),
    [
        (".step-000004.2.partial/actorRollout/rank-00000/model.safetensors", True),
        (".step-000002.pruned/actorRollout/rank-00000/model.safetensors", True),
        ("step-000004/actorRollout/rank-00000/model.safetensors", False),
        ("journal.jsonl", False),
    ],
)
def test_what_the_next_start_removes(left, fits, disk: SmallDisk, config: RunConfig):
    checkpoints = disk.folder / "run" / "checkpoints"
    (checkpoints / "step-000002").mkdir(parents=True)
    (checkpoints / ".latest.aside").symlink_to("step-000002")
    assert list(check_output(config, disk.folder / "run", PARAMETERS)) == []
    disk.fill(checkpoints / left, leave_bytes=2 * MEBI)
    problems = [str(problem) for problem in check_output(config, disk.folder / "run", PARAMETERS)]
    assert (problems == []) == fits, problems
    if not fits:
        assert "0.00 GiB are free at" in problems[0]
