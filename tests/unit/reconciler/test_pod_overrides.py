"""What a job may override of a pod, and what it may not (T14, T15)."""

from typing import Any

import pytest

from ppojob_api.pod_overrides import ALLOWED, refusals

FORBIDDEN: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"hostNetwork": True}}, "p.spec.hostNetwork: got true"),
    ({"spec": {"hostPID": True}}, "p.spec.hostPID: got true"),
    ({"spec": {"hostIPC": True}}, "p.spec.hostIPC: got true"),
    ({"spec": {"nodeName": "a"}}, 'p.spec.nodeName: got "a"'),
    ({"spec": {"serviceAccountName": "admin"}}, 'p.spec.serviceAccountName: got "admin"'),
    ({"spec": {"automountServiceAccountToken": True}}, "p.spec.automountServiceAccountToken"),
    ({"spec": {"runtimeClassName": "runc"}}, 'p.spec.runtimeClassName: got "runc"'),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "p.spec.securityContext"),
    ({"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}, "p.spec.volumes"),
    ({"spec": {"containers": [{"name": "trainer"}]}}, "p.spec.containers"),
    ({"spec": {"initContainers": []}}, "p.spec.initContainers"),
    ({"metadata": {"ownerReferences": []}}, "p.metadata.ownerReferences"),
    ({"metadata": {"labels": {"ppojob.dev/job": "x"}}}, 'p.metadata.labels: got "ppojob.dev/job"'),
    ({"metadata": {"labels": {"a": 1}}}, "p.metadata.labels"),
    ({"spec": "all"}, 'p.spec: got "all": it is no object'),
    ({"status": {}}, "p.status"),
]


@pytest.mark.parametrize(("overrides", "line"), FORBIDDEN)
def test_a_forbidden_part_is_named(overrides: dict[str, Any], line: str) -> None:
    found = [str(problem) for problem in refusals(overrides, "p")]
    assert len(found) == 1
    assert found[0].startswith(line)


def test_what_is_allowed_passes() -> None:
    overrides: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    for path in ALLOWED:
        part, name = path.split(".")
        overrides[part][name] = {"team": "a"} if part == "metadata" else "x"
    assert not list(refusals(overrides, "p"))
