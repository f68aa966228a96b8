"""What a job may override of a pod, and what it may not."""

from typing import Any

import pytest

from ppojob_api.pod_overrides import ALLOWED, refusals
from ppojob_api.problem import ReasonCode

FORBIDDEN: dict[str, Any] = {
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "nodeName": "a",
    "serviceAccountName": "admin",
    "automountServiceAccountToken": True,
    "runtimeClassName": "runc",
    "securityContext": {"runAsUser": 0},
    "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
    "containers": [{"name": "trainer"}],
    "initContainers": [],
    # No field gives a claim to the container.
    "resourceClaims": [{"name": "gpu"}],
}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    *(({"spec": {k: v}}, f"p.spec.{k}", "Forbidden") for k, v in FORBIDDEN.items()),
    ({"metadata": {"ownerReferences": []}}, "p.metadata.ownerReferences", "Forbidden"),
    ({"metadata": {"labels": {"ppojob.dev/job": "x"}}}, "p.metadata.labels", "Forbidden"),
    ({"metadata": {"labels": {"a": 1}}}, 'p.metadata.labels["a"]', "WrongType"),
    ({"metadata": {"labels": ["a"]}}, "p.metadata.labels", "WrongType"),
    ({"metadata": {"labels": {"a b": "c"}}}, "p.metadata.labels", "BadForm"),
    ({"metadata": {"labels": {"a": "b c"}}}, 'p.metadata.labels["a"]', "BadForm"),
    ({"metadata": {"annotations": {"a/b/c": ""}}}, "p.metadata.annotations", "BadForm"),
    ({"spec": "all"}, "p.spec", "WrongType"),
    ({"spec": {"dnsConfig": "8.8.8.8"}}, "p.spec.dnsConfig", "WrongType"),
    ({"spec": {"readinessGates": {}}}, "p.spec.readinessGates", "WrongType"),
    ({"status": {}}, "p.status", "Forbidden"),
]


@pytest.mark.parametrize(("overrides", "where", "code"), WRONG)
def test_a_forbidden_part_is_named(overrides: dict[str, Any], where: str, code: str) -> None:
    found = [(problem.where, problem.reason_code) for problem in refusals(overrides, "p")]
    assert found == [(where, ReasonCode(code))]


def test_what_is_allowed_passes() -> None:
    examples: dict[type, Any] = {dict: {"team": "a"}, list: [], str: "x"}
    overrides: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    for path, kind in ALLOWED.items():
        part, name = path.split(".")
        overrides[part][name] = examples[kind]
    # The words of an annotation are free.
    overrides["metadata"]["annotations"] = {"a.example/note": "two words"}
    assert not list(refusals(overrides, "p"))
