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
    ({"metadata": {"labels": {"a": 1}}}, 'p.metadata.labels["a"]: got 1: it is not text; text'),
    ({"metadata": {"labels": ["a"]}}, 'p.metadata.labels: got ["a"]: it is not an object'),
    ({"metadata": {"labels": {"a b": "c"}}}, 'p.metadata.labels: got "a b": it is not the name'),
    ({"metadata": {"labels": {"a": "b c"}}}, 'p.metadata.labels["a"]: got "b c": it is not the'),
    ({"metadata": {"annotations": {"a/b/c": ""}}}, 'p.metadata.annotations: got "a/b/c": it is'),
    ({"spec": "all"}, 'p.spec: got "all": it is not an object'),
    ({"spec": {"dnsConfig": "8.8.8.8"}}, 'p.spec.dnsConfig: got "8.8.8.8": it is not an object'),
    ({"spec": {"readinessGates": {}}}, "p.spec.readinessGates: got {}: it is not a list; a list"),
    # No field gives a claim to the container.
    ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, "p.spec.resourceClaims: got [{"),
    ({"status": {}}, "p.status"),
]


@pytest.mark.parametrize(("overrides", "line"), FORBIDDEN)
def test_a_forbidden_part_is_named(overrides: dict[str, Any], line: str) -> None:
    found = [str(problem) for problem in refusals(overrides, "p")]
    assert len(found) == 1
    assert found[0].startswith(line)


def test_what_is_allowed_passes() -> None:
    examples: dict[type, Any] = {dict: {"team": "a"}, list: [], str: "x"}
    overrides: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    for path, kind in ALLOWED.items():
        part, name = path.split(".")
        overrides[part][name] = examples[kind]
    # The words of an annotation are free.
    overrides["metadata"]["annotations"] = {"a.example/note": "two words"}
    assert not list(refusals(overrides, "p"))
