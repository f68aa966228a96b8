"""Tests on a real node: `make cluster-up` first. Each file gets a namespace of its own."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_access import REPOSITORY, Cluster

TOOL = Path(__file__).parent / "tool"


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


@pytest.fixture(scope="session")
def base_image() -> str:
    """The name of an image with Python; made and imported here once, or brought by `kind-up`."""
    if not (REPOSITORY / ".cluster" / "node").exists():
        return "localhost/ppojob/base:dev"
    for action in (["base"], ["import", "base"]):
        done = subprocess.run(
            [sys.executable, TOOL, "image", *action], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return done.stdout.strip()
