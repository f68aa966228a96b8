"""The short form of benchmarks/operator_scale.py; what takes how long is not judged here."""

import json
import subprocess
import sys

import pytest
from cluster_access import REPOSITORY, Cluster, own_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

JOBS = 12
LOOKS_THAT_TELL = 9
"""Of a job of eight pods: each may become ready by itself, and then all of them are."""


def test_a_dozen_jobs_cost_nothing_once_they_are_ready(cluster: Cluster, crd: None) -> None:
    done = subprocess.run(
        [
            sys.executable,
            REPOSITORY / "benchmarks" / "operator_scale.py",
            f"--jobs={JOBS}",
            "--steady-seconds=20",
        ],
        env=own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["steady_writes"] == 0
    assert figures["noop_requests"] == 0
    assert figures["memory_max_mb"] < 250
    # Its objects, at most a status and an Event for each turn, and nothing twice.
    assert figures["writes_a_job"] < figures["objects_a_job"] + 2 * LOOKS_THAT_TELL
