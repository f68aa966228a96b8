from pathlib import Path

import pytest
import run_folders

ACCURACY = "val-core/tiny/acc/mean@1"


def test_the_best_checkpoint_stays(start, tiny_job, output: Path):
    # The best of a job whose reward rises is the last one, so the least is asked for.
    start(
        tiny_job(
            steps={"total": 8, "validateEvery": 2},
            checkpoint={"every": 2, "best": {"metric": ACCURACY, "mode": "min"}},
        ),
        output,
    ).succeed()
    values = {
        int(record["step"]): record[ACCURACY]
        for record in run_folders.metrics(output)
        if record["step"] > 0 and ACCURACY in record
    }
    best = min(values, key=lambda step: (values[step], step))
    kept = {path.name for path in (output / "checkpoints").glob("step-*")}
    assert kept == {f"step-{step:06d}" for step in (best, 6, 8)}, values
    assert (output / "checkpoints" / "best").readlink() == Path(f"step-{best:06d}")


def test_a_metric_that_no_validation_has_ends_the_job_before_it_trains(start, tiny_job, output):
    best = {"metric": "val-core/tinny/acc/mean@1"}
    steps, checkpoint = {"total": 8, "validateEvery": 2}, {"every": 2, "best": best}
    run = start(tiny_job(steps=steps, checkpoint=checkpoint), output)
    assert run.wait() == 2, run.logs()
    assert f"such as {ACCURACY}" in run.logs()
    assert not run_folders.metrics(output)


@pytest.mark.long
def test_a_reward_model_scores_the_same_wherever_it_lives(
    start, run_through, tiny_job, classifier, tmp_path
):
    """Beside the policy, or apart and killed around its answers."""
    points = ("rpc.score_by_model.answer.before@1=kill", "rpc.score_by_model.answer.after@2=kill")
    section = {"path": str(classifier), "dtype": "float32", "weight": 2.0}
    job = {
        "rewardModel": section,
        "rewards": [],
        "steps": {"total": 3},
        "timeouts": {"livenessSeconds": 60},
    }
    beside, apart = tmp_path / "beside", tmp_path / "apart"
    roles = {"rewardModel": {"colocateWith": "actorRollout"}}
    start(tiny_job(**job, roles=roles), beside).succeed()
    roles = {"rewardModel": {"colocateWith": "none"}}
    run_through(tiny_job(**job, roles=roles), apart, *points)
    assert run_folders.result(apart) == run_folders.result(beside)
    scores = [record["critic/score/mean"] for record in run_folders.metrics(apart)[1:]]
    assert len(set(scores)) == 3, scores


def test_a_reward_model_and_a_function_add_up(start, tiny_job, classifier, tmp_path: Path):
    model = {"path": str(classifier), "dtype": "float32"}
    job = {"steps": {"total": 2}, "rewardModel": model}
    found = {}
    for name, changes in (
        ("function", {"rewardModel": None}),
        ("model", {"rewards": []}),
        ("both", {"rewardModel": {**model, "mean": 0.25, "weight": 2.0}}),
    ):
        output = tmp_path / name
        start(tiny_job(**(job | changes)), output).succeed()
        found[name] = run_folders.metrics(output)[1]["critic/score/mean"]
    assert found["both"] == pytest.approx(
        found["function"] + 2.0 * (found["model"] - 0.25), rel=1e-6
    )
