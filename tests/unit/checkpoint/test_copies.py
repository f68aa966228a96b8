import contextlib
import importlib.util
import shutil
from collections.abc import Collection
from pathlib import Path

import kill_server
import pytest
from failing import failing_at
from store_runs import content, job_of, store_of, train

from ppojob_trainer import failpoints
from ppojob_trainer.checkpoint.copies import FIELD, Copies, restore
from ppojob_trainer.checkpoint.journal import Journal, last_saved
from ppojob_trainer.checkpoint.remote_store import RemoteStore
from ppojob_trainer.errors import CannotResume, ConfigError, InjectedFault, JobFailed

POINTS = [point for point in failpoints.all_points() if point.startswith(("copied.", "restored."))]


def test_a_lost_run_goes_on_from_its_newest_copy(tmp_path: Path) -> None:
    config, run = job_of(tmp_path), tmp_path / "runs" / "sum"
    train(run, config, 1, 2, 3)
    there = sorted(path.name for path in (tmp_path / "bucket" / "sum" / "checkpoints").iterdir())
    assert there == ["step-000002", "step-000003"]
    before = content(run)
    shutil.rmtree(run)
    other = config.model_copy(update={"uid": "a-younger-job"})
    restore(other, run)
    assert content(run) == {k: v for k, v in before.items() if "step-000002" not in k}
    found = store_of(run, other).recover().checkpoint
    assert found is not None
    assert found.step == 3
    assert last_saved(Journal(run / "checkpoints" / "journal.jsonl").read()) == 3
    restore(config, run)  # a folder with checkpoints is left alone
    assert store_of(run, other).latest().checkpoint is not None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("actor/rank-0/model.safetensors", b"cut"),
        ("actor/rank-0/model.safetensors", None),
        ("run/metrics.jsonl", None),
    ],
)
def test_a_damaged_copy_is_not_used(tmp_path: Path, name: str, content: bytes | None) -> None:
    config, run = job_of(tmp_path), tmp_path / "runs" / "sum"
    train(run, config, 1, 2)
    shutil.rmtree(run)
    file = tmp_path / "bucket" / "sum" / "checkpoints" / "step-000002" / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    told: list[str] = []
    restore(config, run, told.append)
    assert store_of(run, config).steps() == (1,)
    assert name in told[0]
    assert len(told) == 2


def test_a_right_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    place = RemoteStore(str(tmp_path / "bucket" / "sum"), FIELD, print)

    def put() -> None:
        raise PermissionError("Access Denied")

    with pytest.raises(ConfigError, match=r"^spec.checkpoint.copyTo: .* may read and write it"):
        place._again(put)


def test_a_manifest_that_a_kill_has_torn_is_no_copy_and_made_again(tmp_path: Path) -> None:
    config, run = job_of(tmp_path), tmp_path / "runs" / "sum"
    store = train(run, config, 1, 2)
    torn = tmp_path / "bucket" / "sum" / "checkpoints" / "step-000002" / "manifest.json"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:100])
    restore(config, tmp_path / "runs" / "lost")
    assert store_of(tmp_path / "runs" / "lost", config).steps() == (1,)
    Copies(config, store, lambda _: None).finish(None, lambda: False)
    assert torn.read_bytes() == whole


def test_the_best_of_all_copies_stays(tmp_path: Path) -> None:
    config, run = job_of(tmp_path), tmp_path / "runs" / "sum"
    store = train(run, config, 1, 2, 3)

    def best(steps: Collection[int]) -> int:
        return min(steps)

    for step in (4, 5):
        kill_server.make_checkpoint(store, step)
        Copies(config, store, best).finish(None, lambda: False)
        store.prune(2)
    there = sorted(path.name for path in (tmp_path / "bucket" / "sum" / "checkpoints").iterdir())
    assert there == ["step-000002", "step-000004", "step-000005"]


def test_copies_of_another_run_are_neither_taken_nor_touched(tmp_path: Path) -> None:
    config, run = job_of(tmp_path), tmp_path / "runs" / "sum"
    train(run, config, 1)
    checkpoint = {"copyTo": str(tmp_path / "bucket")}
    other = job_of(tmp_path, seed=5)
    with pytest.raises(CannotResume) as refused:
        restore(other, tmp_path / "runs" / "other")
    assert [line.partition(":")[0] for line in refused.value.problems] == ["spec.seed"]
    with pytest.raises(CannotResume, match=r"^spec.checkpoint.resume"):
        restore(job_of(tmp_path, checkpoint={**checkpoint, "resume": "never"}), tmp_path / "new")
    store = store_of(tmp_path / "runs" / "other", other)
    Journal(store.root / "journal.jsonl").began()
    kill_server.make_checkpoint(store, 2)
    copies = Copies(other, store, lambda _: None)
    copies.start()
    copies._wait(lambda: False)
    assert copies.problem is not None
    assert "spec.seed" in copies.problem
    there = (tmp_path / "bucket" / "sum" / "checkpoints").iterdir()
    assert [path.name for path in there] == ["step-000001"]


def test_a_run_folder_is_no_place_for_its_own_copies(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "sum"
    (tmp_path / "mounted").symlink_to(tmp_path / "runs")
    config = job_of(tmp_path, checkpoint={"copyTo": str(tmp_path / "mounted")})
    store = train(run, config, 1)
    (run / "export").mkdir()
    (run / "export" / "config.json").write_text("{}")
    with pytest.raises(JobFailed, match=r"spec.checkpoint.copyTo: .* is the run folder"):
        Copies(config, store, lambda _: None).finish(run / "export", lambda: False)
    assert (run / "export" / "config.json").exists()
    with pytest.raises(ConfigError, match=r"^spec.checkpoint.copyTo: .* is the run folder"):
        restore(config, run)


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_package_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    config = job_of(tmp_path, checkpoint={"copyTo": "s3://bucket/runs"})
    with pytest.raises(ConfigError, match=r"^spec.checkpoint.copyTo: .* Install s3fs"):
        restore(config, tmp_path / "runs" / "sum")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_whole_copies_alone(point: str, tmp_path: Path) -> None:
    config, run = job_of(tmp_path), tmp_path / "runs" / "sum"
    train(run, config, 1, 2)
    (run / "export").mkdir()
    (run / "export" / "config.json").write_text("{}")
    (run / "export" / "model.safetensors").write_text("weights")
    lost = tmp_path / "runs" / "lost"
    with failing_at(point):
        store = train(run, config, 3)
        copies = Copies(config, store, lambda _: None)
        with contextlib.suppress(Exception):
            copies.finish(run / "export", lambda: False)
        with contextlib.suppress(InjectedFault):
            restore(config, lost)
    restore(config, lost)
    assert store_of(lost, config).latest().checkpoint is not None
    copies.finish(run / "export", lambda: False)
    bucket = tmp_path / "bucket" / "sum"
    there = sorted(path.name for path in (bucket / "checkpoints").iterdir())
    assert there == ["step-000002", "step-000003"]
    assert sorted(path.name for path in (bucket / "export").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    restore(config, tmp_path / "runs" / "last")
    ours = content(run)
    assert content(tmp_path / "runs" / "last") == {
        key: value for key, value in ours.items() if "step-000002" not in key
    }
