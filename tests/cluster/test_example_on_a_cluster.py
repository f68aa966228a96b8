"""The example for a cluster, as the README says: a claim, a copy of model and data, and a job."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_folders
import training_jobs
from cluster_access import REPOSITORY, Cluster
from cluster_jobs import claim
from ruamel.yaml import YAML

pytestmark = [pytest.mark.cluster, pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

FOLDER = REPOSITORY / "examples" / "on-a-cluster"


@pytest.fixture(scope="module")
def volume(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty volume for the example's claim: nobody here makes one by itself."""
    folder = tmp_path_factory.mktemp("claimed")
    os.chown(folder, training_jobs.RUN_USER, training_jobs.RUN_USER)
    made, _ = claim(cluster, training_jobs.CLAIM, folder, storage="20Gi")
    cluster.apply(made)
    yield folder
    cluster.kubectl("delete", "persistentvolume", made["metadata"]["name"], "--wait=false")


def test_what_the_readme_says(cluster: Cluster, release: str, volume: Path, tmp_path: Path) -> None:
    for arguments in (
        ("model", "smollm2", "--output", "models/smollm2-135m"),
        ("data", "addition", "--output", "data/addition"),
    ):
        subprocess.run([sys.executable, "-m", "ppojob_cli", *arguments], cwd=tmp_path, check=True)
    # No registry can be reached from the node: of all images with tar it has the trainer's.
    claim_and_pod = (
        (FOLDER / "volume.yaml").read_text().replace("busybox:1.37", training_jobs.TRAINER)
    )
    cluster.kubectl("apply", "--filename=-", stdin=claim_and_pod)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/work", "--timeout=120s")
    for name in ("models", "data"):
        cluster.kubectl("cp", str(tmp_path / name), "work:/volume")
    cluster.kubectl("delete", "pod", "work", "--grace-period=1")

    manifest = YAML(typ="safe").load(FOLDER / "addition-grpo.yaml")
    spec = manifest["spec"]
    spec["steps"] = {"total": 1, "validateFirst": False}
    del spec["checkpoint"]["every"]
    spec["algorithm"] |= {"promptsPerStep": 2, "samplesPerPrompt": 4}
    spec["data"]["maxValidationRows"] = 4
    # Three pods on a node of two cores, which may be busy.
    for settings in spec["pods"]:
        settings["resources"] = {"cpu": "50m"}
    spec["timeouts"] = {"livenessSeconds": 120}
    cluster.apply(manifest)
    training_jobs.wait_for_phase(cluster, "addition-grpo", "Succeeded")
    run = volume / "addition-grpo"
    assert [record["step"] for record in run_folders.metrics(run)] == [1]
    assert {"config.json", "model.safetensors"} <= {one.name for one in (run / "export").iterdir()}
