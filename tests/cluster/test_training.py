"""A job trains in pods: five roles on a node, by the chart's operator, from images of the tree."""

import json
from pathlib import Path
from typing import Any

import pytest
import run_folders
import tiny_jobs
import training_jobs
from cluster_access import Cluster
from cluster_jobs import wait_for_pods
from training_jobs import Volume

pytestmark = [pytest.mark.cluster, pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

STEPS = {"steps": {"total": 16, "validateEvery": 8}}


@pytest.fixture(scope="module")
def trained(cluster: Cluster, release: str, volume: Volume) -> Path:
    """The run folder of a job, with its reward in a ConfigMap, that was applied and succeeded."""
    scores = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scores"}}
    cluster.apply({**scores, "data": {"reward.py": tiny_jobs.REWARD}})
    source = {"configMap": {"name": "scores", "key": "reward.py"}}
    reward = {"function": "letters", "source": source}
    cluster.apply(training_jobs.job("taught", **STEPS, rewards=[reward]))
    training_jobs.wait_for_phase(cluster, "taught", "Succeeded")
    return volume.run_folder("taught")


def test_the_numbers_are_those_of_one_machine(cluster: Cluster, trained: Path, volume: Volume):
    alone = training_jobs.ran_alone(cluster, volume, training_jobs.job("alone", **STEPS))
    steps = [record["step"] for record in run_folders.metrics(trained)]
    assert steps == list(range(17)), "a validation before the first step, and 16 steps"
    assert run_folders.result(trained) == run_folders.result(alone)


def test_the_model_learned(trained: Path):
    scores = [record["critic/score/mean"] for record in run_folders.metrics(trained)[1:]]
    assert sum(scores[-4:]) / 4 > sum(scores[:4]) / 4 + 0.2


def test_the_model_is_on_the_volume(trained: Path):
    names = {path.name for path in (trained / "export").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    owners = {path.stat().st_uid for path in trained.rglob("*")}
    assert owners == {training_jobs.RUN_USER}


def test_the_status_tells_the_end(cluster: Cluster, trained: Path):
    status: dict[str, Any] = json.loads(cluster.read("ppojob", "taught", "{.status}"))
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions["Complete"] == ("True", "TrainingDone")
    assert status["failures"] == []
    assert status["restarts"] == 0


def test_an_ended_job_gives_its_pods_back(cluster: Cluster, trained: Path):
    wait_for_pods(cluster, "taught", 0)
