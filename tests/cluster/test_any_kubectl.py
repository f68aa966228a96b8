"""One file is one job, whatever sends it to the cluster.

Every example, and a job that sets every field, goes through each client, all of them together. What
the API server has then, read and resolved as the operator does it, has the digest of `ppojob plan
--json`. Namespace and uid, which a cluster gives, are set to those of the plan.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart_programs import helm_on
from click.testing import CliRunner
from cluster_access import REPOSITORY, Cluster
from every_field import every_field
from ruamel.yaml import YAML

from ppojob_api.manifest import to_yaml
from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.main import main
from ppojob_operator.reading import read_job
from ppojob_trainer.json_value import without_nulls

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAME = re.compile(r"^metadata: \{name: ([a-z0-9-]+)\}$", re.MULTILINE)
RELEASE = "of-somebody"


def apply_twice(cluster: Cluster, jobs: Path, folder: Path) -> None:
    cluster.kubectl("apply", f"--filename={jobs}")
    # The second finds nothing to patch: what the API server has filled in is no difference.
    again = cluster.kubectl("apply", f"--filename={jobs}").splitlines()
    assert [line for line in again if not line.endswith(" unchanged")] == []


def create(cluster: Cluster, jobs: Path, folder: Path) -> None:
    cluster.kubectl("create", f"--filename={jobs}")


def apply_after_create(cluster: Cluster, jobs: Path, folder: Path) -> None:
    create(cluster, jobs, folder)
    cluster.kubectl("apply", f"--filename={jobs}")


def apply_over_defaults(cluster: Cluster, jobs: Path, folder: Path) -> None:
    """What a definition of before has written out, also in items of lists, is no edit."""
    for path in jobs.iterdir():
        job = YAML(typ="safe").load(path)
        spec = PPOJob.model_validate(job).spec
        written = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        (folder / path.name).write_text(to_yaml({**job, "spec": written}))
    apply_after_create(cluster, folder, folder)
    cluster.kubectl("apply", f"--filename={jobs}")


def apply_on_the_server(cluster: Cluster, jobs: Path, folder: Path) -> None:
    for _ in range(2):
        cluster.kubectl("apply", "--server-side", f"--filename={jobs}")


def helm_install(cluster: Cluster, jobs: Path, folder: Path) -> None:
    chart = folder / "chart"
    shutil.copytree(jobs, chart / "templates")
    (chart / "Chart.yaml").write_text(f"apiVersion: v2\nname: {RELEASE}\nversion: 0.1.0\n")
    helm_on(cluster, "install", release=RELEASE, chart=chart)


def edit(cluster: Cluster, jobs: Path, folder: Path) -> None:
    create(cluster, jobs, folder)
    editor = folder / "editor"
    label = r's/^  metadata:$/  metadata:\n    labels: {edited: "yes"}/'  # of each item of a list
    editor.write_text(f"#!/bin/sh\nexec sed -i '{label}' \"$1\"\n")
    editor.chmod(0o755)
    names = cluster.kubectl("get", "ppojobs", "--output=name").split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBE_EDITOR", str(editor))
        cluster.kubectl("edit", *names)
    edited = cluster.kubectl("get", "ppojobs", "--selector=edited=yes", "--output=name")
    assert edited.split() == names


WAYS: dict[str, Callable[[Cluster, Path, Path], None]] = {
    "apply": apply_twice,
    "create": create,
    "apply after create": apply_after_create,
    "apply over defaults": apply_over_defaults,
    "apply --server-side": apply_on_the_server,
    "helm": helm_install,
    "edit": edit,
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all files, in which no two jobs have the same name."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "every-field.yaml").write_text(to_yaml(without_nulls(every_field()[0])))
    for path in sorted((REPOSITORY / "examples").rglob("*.yaml")):
        text = path.read_text()
        if "kind: PPOJob" in text:
            (name,) = NAME.findall(text)
            while (own := folder / f"{name}.yaml").exists():
                name += "-again"
            own.write_text(NAME.sub(f"metadata: {{name: {name}}}", text))
    return folder


@pytest.fixture(scope="module")
def plans(jobs: Path) -> dict[str, bytes]:
    """What `ppojob plan --json` says of each file, by the name of its job."""
    found = {}
    for path in jobs.iterdir():
        done = CliRunner().invoke(main, ["plan", "--json", str(path)])
        assert done.exit_code == 0, done.output
        found[path.stem] = done.stdout_bytes.strip()
    return found


@pytest.fixture
def gone_after(cluster: Cluster) -> Iterator[None]:
    """No job, and no release, when the test has ended."""
    yield
    if cluster.kubectl("get", "secrets", f"--selector=name={RELEASE}", "--output=name"):
        helm_on(cluster, "uninstall", release=RELEASE)
    cluster.kubectl("delete", "ppojobs", "--all")


@pytest.mark.parametrize("way", WAYS)
def test_the_cluster_has_the_jobs_of_the_plans(
    cluster, crd, gone_after, jobs, plans, way, tmp_path
):
    WAYS[way](cluster, jobs, tmp_path)
    found = {one["metadata"]["name"]: read_job(one) for one in cluster.get("ppojobs")["items"]}
    assert found.keys() == plans.keys()
    for name, plan in plans.items():
        manifest = found[name].validated
        assert manifest is not None, found[name].problems
        planned = RunConfig.from_json(plan)
        own = resolve(manifest).model_copy(
            update={"namespace": planned.namespace, "uid": planned.uid}
        )
        assert own.digest() == hashlib.sha256(plan).hexdigest(), name


def test_kustomize_renames_what_a_job_names(cluster: Cluster, tmp_path: Path) -> None:
    source = {"configMap": {"name": "score", "file": "score.py"}}
    job = without_nulls(every_field()[0])
    job["spec"] |= {
        "rewards": [{"function": "score", "source": source}],
        "checkpoint": {"volume": {"claimName": "runs"}},
        "pods": [
            {
                "image": "registry.example/trainer:1",
                "env": [{"name": "KEY", "secret": {"name": "keys", "key": "key"}}],
                "volumes": [{"claimName": "runs", "mountPath": "/data"}],
            }
        ],
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}}
    (tmp_path / "score.py").touch()
    shutil.copy(REPOSITORY / "crds" / "kustomizeconfig.yaml", tmp_path)
    for name, content in (
        ("job.yaml", job),
        ("claim.yaml", claim),
        (
            "kustomization.yaml",
            {
                "resources": ["job.yaml", "claim.yaml"],
                "configurations": ["kustomizeconfig.yaml"],
                "namePrefix": "mine-",
                "configMapGenerator": [{"name": "score", "files": ["score.py"]}],
                "secretGenerator": [{"name": "keys", "literals": ["key=a"]}],
                "images": [{"name": "registry.example/trainer", "newTag": "2"}],
            },
        ),
    ):
        (tmp_path / name).write_text(to_yaml(content))
    listed = YAML(typ="safe").load_all(cluster.kubectl("kustomize", str(tmp_path)))
    made = {one["kind"]: one for one in listed}
    names = {kind: one["metadata"]["name"] for kind, one in made.items()}
    assert names["PPOJob"] == "mine-every-field"
    spec, (pods,) = made["PPOJob"]["spec"], made["PPOJob"]["spec"]["pods"]
    assert pods["image"] == "registry.example/trainer:2"
    assert pods["env"][0]["secret"]["name"] == names["Secret"] != "mine-keys"
    assert spec["rewards"][0]["source"]["configMap"]["name"] == names["ConfigMap"] != "mine-score"
    claims = spec["checkpoint"]["volume"]["claimName"], pods["volumes"][0]["claimName"]
    assert claims == (names["PersistentVolumeClaim"],) * 2


@pytest.mark.parametrize("way", ["apply", "create", "apply --server-side"])
def test_a_null_is_no_field_or_refused_by_its_path(cluster, crd, gone_after, way):
    manifest = without_nulls(every_field()[0])
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
