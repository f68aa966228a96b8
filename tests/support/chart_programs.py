"""What reads the chart and its queries for good: helm and promtool."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from chart import CHART, ROOT
from cluster_access import Cluster, own_environment

_PATH = f"{ROOT / '.cluster' / 'bin'}:{os.environ['PATH']}"


def template(*arguments: str) -> str:
    """Render the chart as release `ppojob-operator` in namespace `ppojob-system`."""
    done = helm("template", "ppojob-operator", "--namespace=ppojob-system", *arguments)
    if done.returncode:
        pytest.fail(f"helm template {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def helm(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    names = [arguments[0], str(CHART), *arguments[1:]] if command == "template" else [str(CHART)]
    return _call("helm", "make cluster-up builds it", command, *names)


def helm_on(
    cluster: Cluster,
    command: str,
    *arguments: str,
    release: str = "ppojob-operator",
    chart: Path = CHART,
) -> None:
    """Have helm act on a cluster, for a release in the test's namespace."""
    charts = () if command == "uninstall" else (str(chart),)
    flags = (f"--kubeconfig={cluster.folder}/kubeconfig", f"--namespace={cluster.namespace}")
    where = "make cluster-up builds it"
    done = _call("helm", where, command, release, *charts, *flags, *arguments)
    if done.returncode:
        pytest.fail(f"helm {command} {' '.join(arguments)}: {done.stderr}")


def promtool(action: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Have Prometheus itself `check` a file of rules, or `test` what they do."""
    return _call("promtool", "apt-get install prometheus", action, "rules", str(file))


def _call(program: str, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which(program, path=_PATH)
    if found is None:
        pytest.fail(f"{program}: not found; {source}")
    command = [found, *arguments]
    own = own_environment()
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)
