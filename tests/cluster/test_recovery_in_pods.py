"""Whoever is killed in pods, the job ends with the numbers of one that nobody disturbed.

Docs/contract.md says what a loss costs; here it is seen from outside: pods that were not hit keep
their uid, their container and its time of start, and the metrics are equal bit for bit.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import run_folders
import training_jobs
from cluster_access import Cluster, eventually
from cluster_jobs import pods
from pod_faults import containers, inject_fault, of_job, process
from training_jobs import Volume

pytestmark = [pytest.mark.cluster, pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

JOB = "hit"
STEPS = {"steps": {"total": 60, "validateEvery": 30}}
SLOW_REWARD = """
import time

import reward


def letters(data_source, solution_str, ground_truth, extra_info):
    time.sleep(0.1)
    return reward.letters(data_source, solution_str, ground_truth, extra_info)
"""
"""The same reward, later: a step takes a second, and can be hit."""
OPERATOR = ["-m", "ppojob_operator"]
OPERATORS = "app.kubernetes.io/name=ppojob-operator"


@pytest.fixture(scope="module")
def alone(cluster: Cluster, release: str, volume: Volume) -> Path:
    """The run folder of the same job in one pod, undisturbed."""
    if not cluster.is_ours:
        pytest.skip("the pods' processes are in kind's container")
    (volume.folder / "slow.py").write_text(SLOW_REWARD)
    return training_jobs.ran_alone(cluster, volume, training_jobs.job("alone", **STEPS))


BLOWS = (
    ("kill container", "reference"),
    ("kill container", "reward"),
    ("kill container", "critic"),
    ("kill rank", "actor-rollout"),
    ("kill container", "actor-rollout"),
    ("kill container", "controller"),
    ("evict", "reference"),
    # The budget remembers an evicted pod by its name for two minutes, though it is there again.
    ("delete pod", "actor-rollout"),
    ("delete pod", "controller"),
)


def test_killed_in_turn(cluster: Cluster, alone: Path, volume: Volume):
    cluster.apply(slow_job(JOB))
    volume.wait_for_step(JOB, 2)
    operators, hit_at = containers(cluster, OPERATORS), time.time()
    for pod in operators.values():
        os.kill(process(pod, OPERATOR), signal.SIGKILL)
    step_at = volume.wait_for_step_behind(JOB, hit_at)
    print(f"kill operator: next step {step_at - hit_at:.1f} s later")
    for how, role in BLOWS:
        name, hit_at = f"{JOB}-{role}-0", time.time()
        before = inject_fault(cluster, how, JOB, role)
        assert len(before) == 5
        step_at = volume.wait_for_step_behind(JOB, time.time())
        print(f"{how} {role}: next step {step_at - hit_at:.1f} s later")
        after = of_job(cluster, JOB)
        assert (after.pop(name) == before.pop(name)) is (how == "kill rank")
        assert after == before, (how, role)
    training_jobs.wait_for_phase(cluster, JOB, "Succeeded")
    assert run_folders.result(volume.run_folder(JOB)) == run_folders.result(alone)
    started_again = containers(cluster, OPERATORS)
    assert started_again.keys() == operators.keys()
    assert set(started_again.values()).isdisjoint(operators.values())


AHEAD = {
    "roles": {"rollout": {}, "actorRollout": {"replicas": 2, "parallelism": {"sequence": 2}}},
    "rollout": {**training_jobs.SECTIONS["rollout"], "maxStaleness": 1},
}
"""Rows are drawn a step ahead in a pod of their own, and two pods share the tokens of each."""


def test_engines_in_pods_of_their_own_killed_in_turn(cluster: Cluster, alone: Path, volume: Volume):
    undisturbed = training_jobs.ran_alone(
        cluster, volume, training_jobs.job("ahead-alone", **STEPS, **AHEAD)
    )
    cluster.apply(slow_job("ahead", **AHEAD))
    volume.wait_for_step("ahead", 2)
    for how, role in (
        ("kill rank", "rollout"),
        ("kill container", "rollout"),
        ("evict", "rollout"),
        ("kill container", "actor-rollout"),
        ("delete pod", "controller"),
    ):
        name, hit_at = f"ahead-{role}-0", time.time()
        before = inject_fault(cluster, how, "ahead", role)
        step_at = volume.wait_for_step_behind("ahead", time.time())
        print(f"{how} {role}: next step {step_at - hit_at:.1f} s later")
        after = of_job(cluster, "ahead")
        assert (after.pop(name) == before.pop(name)) is (how == "kill rank")
        assert after == before, (how, role)
    training_jobs.wait_for_phase(cluster, "ahead", "Succeeded")
    assert run_folders.result(volume.run_folder("ahead")) == run_folders.result(undisturbed)


def slow_job(name: str, **changes: object) -> dict[str, Any]:
    reward = [{"function": "letters", "source": {"path": f"{training_jobs.MOUNT}/slow.py"}}]
    return training_jobs.job(name, **STEPS, rewards=reward, **changes)


def test_suspended_and_resumed_and_deleted(cluster: Cluster, alone: Path, volume: Volume):
    cluster.apply(slow_job("paused"))
    volume.wait_for_step("paused", 4)
    cluster.apply(slow_job("paused", lifecycle={"suspend": True}))
    training_jobs.wait_for_phase(cluster, "paused", "Suspended")
    eventually(lambda: not pods(cluster, "paused"))
    step = volume.steps_done("paused")
    checkpoints = volume.run_folder("paused") / "checkpoints"
    assert (checkpoints / f"step-{step:06d}").is_dir(), "the step that was under way is saved"
    cluster.apply(slow_job("paused"))
    volume.wait_for_step("paused", step + 4)
    cluster.kubectl("delete", "ppojob", "paused")
    eventually(lambda: not pods(cluster, "paused"), 300)
    done = run_folders.without_clock(volume.run_folder("paused"))
    assert len(done) > step + 4
    assert done == run_folders.without_clock(alone)[: len(done)]
    assert (checkpoints / "latest").exists()


def test_suspended_it_goes_on_with_other_pods(cluster: Cluster, alone: Path, volume: Volume):
    """Two pods share the tokens of each row, engines have one of their own, the critic none."""
    other = {"rollout": {}, "actorRollout": {"replicas": 2, "parallelism": {"sequence": 2}}}
    suspended = {"lifecycle": {"suspend": True}}
    cluster.apply(slow_job("moved"))
    volume.wait_for_step("moved", 4)
    cluster.apply(slow_job("moved", **suspended))
    training_jobs.wait_for_phase(cluster, "moved", "Suspended")
    step = volume.steps_done("moved")
    cluster.apply(slow_job("moved", roles=other))
    training_jobs.wait_for_phase(cluster, "moved", "Succeeded")
    moved = volume.run_folder("moved")
    done, calm = run_folders.without_clock(moved), run_folders.without_clock(alone)
    assert [one["step"] for one in done] == [one["step"] for one in calm]
    assert done[: step + 1] == calm[: step + 1]
    told = cluster.kubectl("get", "events", "--field-selector=reason=LayoutChanged")
    assert "new pods: controller 1, actorRollout 2, rollout 1, reward 1; previous pods: " in told
    assert (moved / "export" / "model.safetensors").exists()
