"""Jobs that train in pods: their volume, the operator that serves them, and what they leave."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import run_folders
import tiny_jobs
from cluster_access import Cluster, eventually
from cluster_jobs import claim, restricted_container, restricted_pod

CLAIM = "work"
MOUNT = "/work"
RUN_USER = 1000
TRAINER = "localhost/ppojob/trainer:dev"
"""As `python3 tests/cluster/tool image import` names it."""

SECTIONS: dict[str, Any] = {
    **tiny_jobs.PPO,
    "roles": tiny_jobs.OWN_PODS,
    "rollout": {"engine": "vllm", "kvCacheGib": 0.25},
    "training": {"autocast": "auto"},
    "optimizer": {"learningRate": 3e-3},
    # A busy machine may take its time; a rank that is killed is noticed by its end.
    "timeouts": {"livenessSeconds": 120},
    "checkpoint": {"every": 2, "volume": {"claimName": CLAIM}},
    "pods": [
        {
            "image": TRAINER,
            # Five pods on a node of two cores.
            "resources": {"cpu": "50m"},
            "memory": "3Gi",
            "volumes": [{"claimName": CLAIM, "mountPath": MOUNT}],
        }
    ],
}
"""PPO with five roles in pods of their own, and the real rollout engine."""


@dataclass(frozen=True)
class Volume:
    """A folder of this machine that pods mount, with a model, data and a reward function."""

    folder: Path

    def run_folder(self, job: str) -> Path:
        return self.folder / job

    def steps_done(self, job: str) -> int:
        """The last step whose metrics are written; 0 before the first."""
        found = run_folders.metrics(self.run_folder(job))
        return int(found[-1]["step"]) if found else 0

    def wait_for_step(self, job: str, step: int, seconds: float = 600.0) -> None:
        eventually(lambda: self.steps_done(job) >= step, seconds)

    def wait_for_step_behind(self, job: str, moment: float) -> float:
        """Wait until a step was done later than a moment; answers when that was."""

        def times() -> list[float]:
            found = run_folders.metrics(self.run_folder(job))
            return [record["time"] for record in found if record["time"] > moment]

        eventually(lambda: bool(times()), 600)
        return times()[0]


def make_volume(cluster: Cluster, folder: Path) -> Volume:
    tiny_jobs.make_tiny_folder(folder)
    return claimed(cluster, folder)


def claimed(cluster: Cluster, folder: Path) -> Volume:
    """Make a folder a claim of the namespace."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, RUN_USER, RUN_USER)
    cluster.apply(*claim(cluster, CLAIM, folder))
    return Volume(folder)


def job(name: str, **changes: object) -> dict[str, Any]:
    """The manifest of a job; `changes` replace whole sections of its spec."""
    manifest = tiny_jobs.make_manifest(Path(MOUNT), **{**SECTIONS, **changes})
    return {**manifest, "metadata": {"name": name}}


def ran_alone(cluster: Cluster, volume: Volume, manifest: dict[str, Any]) -> Path:
    """Have `ppojob run` do a job in one pod of the same image; answers the run folder."""
    name = manifest["metadata"]["name"]
    (volume.folder / f"{name}.json").write_text(json.dumps(manifest))
    command = ["ppojob", "run", f"{MOUNT}/{name}.json", "--plain", "--output", f"{MOUNT}/{name}"]
    mounts = [{"name": "work", "mountPath": MOUNT}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes = [
        {"name": "work", "persistentVolumeClaim": {"claimName": CLAIM}},
        {"name": "tmp", "emptyDir": {}},
    ]
    container = restricted_container("run", TRAINER, *command, volumeMounts=mounts)
    pod = restricted_pod(name, container, {}, restartPolicy="Never", volumes=volumes)
    cluster.apply(pod)
    ended = {"Succeeded", "Failed"}
    eventually(lambda: cluster.read("pod", name, "{.status.phase}") in ended, 600)
    phase = cluster.read("pod", name, "{.status.phase}")
    assert phase == "Succeeded", cluster.kubectl("logs", name)
    cluster.kubectl("delete", "pod", name)
    return volume.run_folder(name)


def wait_for_phase(cluster: Cluster, name: str, *phases: str) -> None:
    """Wait until a job is in one of these phases; one that fails instead says why."""
    over = {*phases, "Failed", "Succeeded"}
    eventually(lambda: cluster.read("ppojob", name, "{.status.phase}") in over, 900)
    phase = cluster.read("ppojob", name, "{.status.phase}")
    assert phase in phases, cluster.kubectl("describe", "ppojob", name)
