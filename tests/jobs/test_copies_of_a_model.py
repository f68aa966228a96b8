"""Ranks that hold copies of a model (HSDP): the numbers of one rank, and nothing lost by kills."""

from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

PATIENT = {"timeouts": {"livenessSeconds": 60}}
SHORT = {"steps": {"total": 3, "validateEvery": 3}}
TWO_COPIES = {"ranksPerReplica": 2, "parallelism": {"dataShard": 1}}
TWO_BY_TWO = {"ranksPerReplica": 4, "parallelism": {"dataShard": 2}}
WHOLE_BATCH = {
    **tiny_jobs.PPO["algorithm"],
    "miniBatchPrompts": 4,
    "shuffleMiniBatches": False,
}
"""A mini-batch has a prompt for each of four ranks."""


@pytest.fixture(scope="module")
def even_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny folder whose model draws no random numbers in updates, with a reward model."""
    folder = tmp_path_factory.mktemp("even")
    tiny_jobs.make_tiny_folder(folder, dropout=0.0)
    tiny_jobs.make_classifier(folder / "model", folder / "classifier")
    return folder


def finished(start, folder: Path, tmp_path: Path, name: str, **changes: object) -> Path:
    """The run folder of a job that has been run to its end."""
    place = tmp_path / name
    place.mkdir()
    manifest = tiny_jobs.write_manifest(place, folder, **{**PATIENT, **changes})
    start(manifest, place / "run").succeed(600)
    return place / "run"


def assert_close(ours: Path, theirs: Path) -> None:
    """The metrics of two layouts, which agree to rounding."""
    for here, there in zip(
        run_folders.without_layout(ours), run_folders.without_layout(theirs), strict=True
    ):
        assert here == pytest.approx(there, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": TWO_BY_TWO}, id="beside"),
        pytest.param(
            {
                "actorRollout": TWO_COPIES,
                **{
                    role: {"colocateWith": "none", **TWO_COPIES}
                    for role in ("critic", "reference", "rewardModel")
                },
            },
            id="apart",
        ),
    ],
)
def test_copies_of_four_models_give_the_numbers_of_one_rank(start, even_folder, tmp_path, roles):
    job = {
        **tiny_jobs.PPO,
        **SHORT,
        "algorithm": WHOLE_BATCH,
        "rewards": [],
        "rewardModel": {"path": str(even_folder / "classifier"), "dtype": "float32"},
    }
    one = finished(start, even_folder, tmp_path, "one", **job)
    copies = finished(start, even_folder, tmp_path, "copies", **job, roles=roles)
    assert_close(copies, one)
    first, second = (run_folders.metrics(output)[1] for output in (one, copies))
    assert second["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)
    (newest,) = sorted(copies.glob("checkpoints/step-*"))[-1:]
    for role in ("actorRollout", "critic"):
        shards = roles.get(role, roles["actorRollout"])["parallelism"]["dataShard"]
        assert len(list(newest.glob(f"{role}/*/model.safetensors"))) == shards, role


def test_copies_that_are_killed_leave_what_undisturbed_ones_do(
    start, tiny_folder, tmp_path, output, once
):
    """With dropout, so that random states count too."""
    job = {
        **PATIENT,
        "steps": {"total": 6, "validateEvery": 3},
        "recovery": {"restartsWithoutProgress": 100},
        "roles": {"actorRollout": TWO_COPIES},
    }
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    calm.mkdir()
    killed.mkdir()
    undisturbed = tiny_jobs.undisturbed_result(calm, tiny_folder, **job)
    points = [
        "rpc.update.answer.before@3=kill",
        "rpc.update.answer.after@5=kill",
        "rpc.restore.answer.before@1=kill",
        "checkpoint.shard.write.middle@2=kill",
        "rpc.save_shards.answer.before@2=kill_group",  # the whole job
    ]
    manifest = tiny_jobs.write_manifest(killed, tiny_folder, **job)
    run = start(manifest, output, **job_points.armed(once, *points))
    assert run.wait(600) == 3, run.logs()
    start(manifest, output).succeed(600)
    assert len(list(once.iterdir())) == len(points), "every point was hit"
    assert run_folders.result(output) == undisturbed


def test_a_run_of_copies_goes_on_without_them_and_back(
    start, even_folder, tmp_path: Path, output, once
):
    """A commit of any layout is taken up by any other: equal to rounding, and the log says so."""
    job = {**PATIENT, "steps": {"total": 6}, "checkpoint": {"every": 2}}
    whole = finished(start, even_folder, tmp_path, "whole", **job)

    def go(point: str, **roles: object) -> None:
        manifest = tiny_jobs.write_manifest(tmp_path, even_folder, **job, roles=roles)
        run = start(manifest, output, **job_points.armed(once, f"{point}=kill_group"))
        assert run.wait(600) == 3, run.logs()

    go("controller.step.begin@3", actorRollout=TWO_COPIES)
    go("controller.step.recorded@3", actorRollout={"ranksPerReplica": 2})
    roles = {"actorRollout": TWO_COPIES}
    last = tiny_jobs.write_manifest(tmp_path, even_folder, **job, roles=roles)
    start(last, output).succeed(600)
    assert_close(output, whole)
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    for change in ("1 -> 2", "2 -> 1"):
        assert f"spec.roles.actorRollout.parallelism.dataShard: {change}: from here on" in log
