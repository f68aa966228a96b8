"""One file is one job, whatever sends it to the cluster.

Every example, and a job that sets every field, goes through each client. What the API server has
then, read and resolved as the operator does it, has the digest of `ppojob plan --json`. Namespace
and uid, which a cluster gives, are set to those of the plan.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_programs import helm_on
from cluster_access import REPOSITORY, Cluster
from every_field import every_field

from ppojob_api.manifest import to_yaml
from ppojob_api.run_config import RunConfig, resolve
from ppojob_operator.reading import read_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

EXAMPLES = [
    str(path.relative_to(REPOSITORY))
    for path in sorted((REPOSITORY / "examples").rglob("*.yaml"))
    if "kind: PPOJob" in path.read_text()
]
RELEASE = "of-somebody"


def apply_twice(cluster: Cluster, file: Path, folder: Path) -> None:
    # The second is a patch of what the first created.
    for _ in range(2):
        cluster.kubectl("apply", f"--filename={file}")


def create(cluster: Cluster, file: Path, folder: Path) -> None:
    cluster.kubectl("create", f"--filename={file}")


def apply_after_create(cluster: Cluster, file: Path, folder: Path) -> None:
    create(cluster, file, folder)
    cluster.kubectl("apply", f"--filename={file}")


def apply_on_the_server(cluster: Cluster, file: Path, folder: Path) -> None:
    for _ in range(2):
        cluster.kubectl("apply", "--server-side", f"--filename={file}")


def helm_install(cluster: Cluster, file: Path, folder: Path) -> None:
    chart = folder / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(f"apiVersion: v2\nname: {RELEASE}\nversion: 0.1.0\n")
    (chart / "templates" / "job.yaml").write_text(file.read_text())
    helm_on(cluster, "install", release=RELEASE, chart=chart)


def edit(cluster: Cluster, file: Path, folder: Path) -> None:
    create(cluster, file, folder)
    editor = folder / "editor"
    label = r's/^metadata:$/metadata:\n  labels: {edited: "yes"}/'
    editor.write_text(f"#!/bin/sh\nexec sed -i '{label}' \"$1\"\n")
    editor.chmod(0o755)
    name = cluster.kubectl("get", "ppojobs", "--output=name").strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBE_EDITOR", str(editor))
        cluster.kubectl("edit", name)
    assert cluster.kubectl("get", "ppojobs", "--selector=edited=yes", "--output=name")


WAYS: dict[str, Callable[[Cluster, Path, Path], None]] = {
    "apply": apply_twice,
    "create": create,
    "apply after create": apply_after_create,
    "apply --server-side": apply_on_the_server,
    "helm": helm_install,
    "edit": edit,
}


def given(value: Any) -> Any:
    """A manifest without its nulls."""
    if isinstance(value, dict):
        return {name: given(one) for name, one in value.items() if one is not None}
    return [given(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", params=[*EXAMPLES, "every field"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param != "every field":
        return REPOSITORY / str(request.param)
    path = tmp_path_factory.mktemp("every-field") / "job.yaml"
    path.write_text(to_yaml(given(every_field()[0])))
    return path


@pytest.fixture(scope="module")
def plan(file: Path) -> bytes:
    """What `ppojob plan --json` says of the file."""
    command = [sys.executable, "-m", "ppojob_cli", "plan", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.strip()


@pytest.fixture
def gone_after(cluster: Cluster) -> Iterator[None]:
    """No job, and no release, when the test has ended."""
    yield
    if cluster.kubectl("get", "secrets", f"--selector=name={RELEASE}", "--output=name"):
        helm_on(cluster, "uninstall", release=RELEASE)
    cluster.kubectl("delete", "ppojobs", "--all")


@pytest.mark.parametrize("way", WAYS)
def test_the_cluster_has_the_job_of_the_plan(cluster, crd, gone_after, plan, file, way, tmp_path):
    WAYS[way](cluster, file, tmp_path)
    (found,) = cluster.get("ppojobs")["items"]
    job = read_job(found)
    assert job.manifest is not None, job.problems
    planned = RunConfig.from_json(plan)
    own = resolve(job.manifest).model_copy(
        update={"namespace": planned.namespace, "uid": planned.uid}
    )
    assert own.digest() == hashlib.sha256(plan).hexdigest()


@pytest.mark.parametrize("way", ["apply", "create", "apply --server-side"])
def test_a_null_is_no_field_or_refused_by_its_path(cluster, crd, gone_after, way):
    manifest = given(every_field()[0])
    manifest["spec"]["rollout"]["topP"] = None
    manifest["spec"]["rollout"]["kvCacheGib"] = None
    command = (*way.split(), "--filename=-")
    if "--server-side" in way:
        assert "spec.rollout.kvCacheGib" in cluster.refused(*command, stdin=json.dumps(manifest))
        return
    cluster.kubectl(*command, stdin=json.dumps(manifest))
    rollout = cluster.get("ppojob", "every-field")["spec"]["rollout"]
    assert rollout["topP"] == 1.0
    assert "kvCacheGib" not in rollout
