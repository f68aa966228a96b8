"""Tests on a real node: `make cluster-up` first. Each file gets a namespace of its own."""

import functools
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster_jobs
import pytest
import training_jobs
from chart_programs import helm_on
from cluster_access import REPOSITORY, Cluster
from fault_proxy import FaultProxy

TOOL = Path(__file__).parent / "tool"
BUILD_ARGUMENTS = {
    "operator": (),
    "trainer": (
        "--build-arg=ACCELERATOR=cpu",
        "--build-arg=TRAINER_PACKAGES=libnuma1 libseccomp2 bubblewrap",
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs a running cluster (make cluster-up)")


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The node, and a fresh namespace in which pods must be `restricted`."""
    folder = REPOSITORY / ".cluster"
    if not (folder / "kubeconfig").exists():
        asked_for = "cluster" in str(pytestconfig.getoption("markexpr"))
        (pytest.fail if asked_for else pytest.skip)("no cluster is up; first: make cluster-up")
    given = Cluster(folder, namespace=f"test-{uuid.uuid4().hex[:8]}")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    given.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": given.namespace, "labels": labels},
        }
    )
    yield given
    given.kubectl("delete", "namespace", given.namespace, "--timeout=120s")


@pytest.fixture(scope="module")
def crd(cluster: Cluster) -> None:
    """The definition of the resource as it is in the working tree."""
    file = REPOSITORY / "crds" / "ppojobs.yaml"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={file}")
    cluster.establish("ppojobs.ppojob.dev")


@pytest.fixture
def proxy(cluster: Cluster, tmp_path: Path) -> Iterator[FaultProxy]:
    """What stands between an operator and the API server."""
    with FaultProxy(cluster.folder / "kubeconfig", tmp_path) as one:
        yield one


@pytest.fixture(scope="session")
def base_image() -> str:
    """The name of an image with Python; made and imported here once, or brought by `kind-up`."""
    if not (REPOSITORY / ".cluster" / "node").exists():
        return "localhost/ppojob/base:dev"
    _image("base")
    return _image("import", "base")


@pytest.fixture(scope="session")
def image_of() -> Callable[[str], str]:
    """Brings a target of the working tree's Dockerfile into the node, once; answers its name."""
    if not (REPOSITORY / ".cluster" / "node").exists():
        pytest.skip("kind has no images of the tree")

    @functools.cache
    def bring_in(target: str) -> str:
        _image("build", target, *BUILD_ARGUMENTS[target])
        return _image("import", target)

    return bring_in


@pytest.fixture(scope="session")
def images(image_of: Callable[[str], str]) -> None:
    """Operator and trainer as images of the working tree, in the node."""
    for target in BUILD_ARGUMENTS:
        image_of(target)


def _image(*arguments: str) -> str:
    command = [sys.executable, str(TOOL), "image", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def release(cluster: Cluster, crd: None, images: None) -> Iterator[str]:
    """The chart with a running operator for the test's namespace; answers its name."""
    values = {
        "crds.install": "false",
        "image.repository": "localhost/ppojob/operator",
        "image.tag": "dev",
        "image.pullPolicy": "Never",
        "trainerImage.repository": "localhost/ppojob/trainer",
        "trainerImage.tag": "dev",
        "trainerImage.pullPolicy": "Never",
        "replicas": "1",
        "resources.requests.cpu": "10m",
        "watchNamespaces": f"{{{cluster.namespace}}}",
    }
    given = [f"--set={name}={value}" for name, value in values.items()]
    helm_on(cluster, "upgrade", "--install", "--wait", "--timeout=180s", *given)
    yield "ppojob-operator"
    helm_on(cluster, "uninstall")


@pytest.fixture(scope="module")
def volume(cluster, tmp_path_factory) -> Iterator[training_jobs.Volume]:
    """A volume with a model, data and a reward function, bound to the claim `work`."""
    yield training_jobs.make_volume(cluster, tmp_path_factory.mktemp("volume"))
    name = cluster_jobs.volume_name(cluster, training_jobs.CLAIM)
    cluster.kubectl("delete", "persistentvolume", name, "--wait=false")
