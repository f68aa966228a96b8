import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs

pytestmark = pytest.mark.timeout(1_800)

SLUGS = ("controller", "actor-rollout", "reference", "critic", "reward")
SHORT = {"steps": {"total": 3, "validateEvery": 3}}
PATIENT = {"timeouts": {"livenessSeconds": 60}}
"""Many processes start at once here, on as many cores as there are."""
APART = {
    **tiny_jobs.PPO,
    **PATIENT,
    "roles": tiny_jobs.OWN_PODS,
    "recovery": {"restartsWithoutProgress": 1000},
}


@pytest.fixture(scope="module")
def beside(even_folder: Path, alone: Callable[..., Path]) -> Path:
    return alone(even_folder, **tiny_jobs.PPO, **PATIENT, **SHORT)


@pytest.fixture(scope="module")
def undisturbed(alone: Callable[..., Path]) -> dict[str, object]:
    return run_folders.result(alone(**APART))


def test_roles_apart_give_the_bits_of_roles_beside_and_what_is_rejected_reaches_none(finished):
    """Under top-p the engine's probabilities are not the trainer's: a fifth or so smaller."""
    rejection = [{"mode": "token_k1", "low": 0.5, "high": 1.243}]
    algorithm = {
        **tiny_jobs.PPO["algorithm"],
        "rolloutCorrection": {"weights": "token", "normalize": True, "rejection": rejection},
        "highEntropyShare": 0.5,
    }
    common = {**tiny_jobs.PPO, **SHORT, "algorithm": algorithm, "rollout": {"topP": 0.8}}
    together = finished("together", **common)
    apart = finished("apart", **common, roles=tiny_jobs.OWN_PODS)
    assert run_folders.result(apart) == run_folders.result(together)
    records = run_folders.metrics(together)[-3:]
    assert not run_folders.unnamed(records)
    for record in records:
        assert 0.0 < record["rollout_corr/rollout_rs_token_k1_masked_fraction"] < 1.0
        assert record["rollout_corr/rollout_is_mean"] < 1.0
        assert record["actor/entropy_threshold"] > 0.0


def test_two_ranks_give_the_numbers_of_one(finished, beside: Path):
    two_ranks = {"colocateWith": "none", "ranksPerReplica": 2}
    roles = {"actorRollout": {"ranksPerReplica": 2}, "critic": two_ranks, "reference": two_ranks}
    two = finished("two", **tiny_jobs.PPO, **SHORT, roles=roles)
    for step in (1, 2):
        assert run_folders.rows(two, step) == run_folders.rows(beside, step)
    run_folders.assert_close(two, beside)
    first, second = (run_folders.metrics(output)[1] for output in (beside, two))
    assert second["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)


def test_every_role_killed_in_turn(start, tiny_job, output: Path, undisturbed):
    """The result is that of an undisturbed run, and who was not hit keeps its process."""
    run = start(tiny_job(**APART), output)
    for step, victim in enumerate(SLUGS, start=2):
        run.wait_for_step(step)
        before = {slug: run_folders.rank_pids(output, slug) for slug in SLUGS}
        every = [pid for found in before.values() for pid in found.values()]
        assert len(set(every)) == len(every) >= 11, "roles are processes of their own"
        kind = "controller" if victim == "controller" else "rank"
        os.kill(before[victim][kind], signal.SIGKILL)
        after = wait_for_another(output, victim, kind, before[victim][kind])
        for slug in SLUGS:
            for name, pid in before[slug].items():
                if (slug, name) != (victim, kind) and name != "child":
                    assert after[slug].get(name) == pid, (victim, slug, name)
    assert run.wait(600) == 0, run.logs()
    assert run_folders.result(output) == undisturbed
    run_folders.wait_until_gone(output)


@pytest.mark.long
def test_a_controller_killed_behind_the_passes_of_other_pods(
    run_through, tiny_job, output, undisturbed
):
    """What the reference and the critic have said of the rows is not asked for twice."""
    points = ["controller.step.recorded@1=kill", "controller.step.computed@2=kill"]
    run_through(tiny_job(**APART), output, *points, seconds=600)
    journal = (output / "checkpoints" / "journal.jsonl").read_text()
    assert journal.count('"controller_started"') == 3
    assert run_folders.rewinds(output) == 1, "only the start counts as one"
    assert run_folders.result(output) == undisturbed


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(None, id="every answer", marks=pytest.mark.long),
        pytest.param(
            [
                "rpc.update.answer.before@5=kill",  # the critic
                "rpc.restore.answer.before@2=kill",  # the policy, while both go back for that
                "rpc.open_channel.answer.before@1=kill",
                "rpc.open_channel.answer.after@1=kill",
                "rpc.move_columns.answer.before@4=stop",
                "rpc.save_shards.answer.before@2=kill_group",  # the whole job
            ],
            id="while recovering",
        ),
    ],
)
def test_killed_where_rows_move(points, run_through, tiny_job, output: Path, undisturbed):
    job = {**APART, "checkpoint": {"every": 1}, "timeouts": {"livenessSeconds": 30}}
    if points is None:
        names = [name for name in job_points.all_points() if name.startswith("rpc.")]
        # Reward models, tools and engines: test_validation_and_reward_models.py, test_agents.py,
        # test_rollout_pods.py; given answers: test_sft.py, test_preferences.py; prompts of a
        # teacher: test_distillation.py.
        others = (
            "rpc.score_by_model.",
            "rpc.act.",
            "rpc.sync_engine_weights.",
            "rpc.transfer_rows.",
        )
        others += ("rpc.demonstrate.", "rpc.measure_loss.", "rpc.supervise.", "rpc.reprompt.")
        points = [f"{name}@1=kill" for name in names if not name.startswith(others)]
        assert len(points) >= 30, points
    run_through(tiny_job(**job), output, *points, seconds=1_700)
    assert run_folders.result(output) == undisturbed


def wait_for_another(
    output: Path, slug: str, kind: str, pid: int, seconds: float = 120.0
) -> dict[str, dict[str, int]]:
    """Process ids by role and kind, once another process has taken the place of one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = run_folders.rank_pids(output, slug)
        if found.get(kind) not in (None, pid):
            return {name: run_folders.rank_pids(output, name) for name in SLUGS}
        time.sleep(0.1)
    pytest.fail(f"{slug} {kind} {pid} was not started again")
