from typing import Any

import pytest
from bad_specs import GOOD_JOB

from ppojob_api import validation
from ppojob_api.checks.pods import OVERRIDABLE
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob

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
    *(({"spec": {k: v}}, f"spec.{k}", "Forbidden") for k, v in FORBIDDEN.items()),
    ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences", "Forbidden"),
    ({"metadata": {"labels": {"ppojob.dev/job": "x"}}}, "metadata.labels", "Forbidden"),
    ({"metadata": {"labels": {"a": 1}}}, 'metadata.labels["a"]', "WrongType"),
    ({"metadata": {"labels": ["a"]}}, "metadata.labels", "WrongType"),
    ({"metadata": {"labels": {"a b": "c"}}}, "metadata.labels", "BadForm"),
    ({"metadata": {"labels": {"a": "b c"}}}, 'metadata.labels["a"]', "BadForm"),
    ({"metadata": {"annotations": {"a/b/c": ""}}}, "metadata.annotations", "BadForm"),
    ({"spec": "all"}, "spec", "Forbidden"),
    ({"spec": {"dnsConfig": "8.8.8.8"}}, "spec.dnsConfig", "WrongType"),
    ({"spec": {"readinessGates": {}}}, "spec.readinessGates", "WrongType"),
    ({"status": {}}, "status", "Forbidden"),
]


def judged(overrides: dict[str, Any]) -> PPOJob | list[Problem]:
    spec = {**GOOD_JOB["spec"], "pods": [{"podOverrides": overrides}]}
    return validation.validate({**GOOD_JOB, "spec": spec})


@pytest.mark.parametrize(("overrides", "where", "code"), WRONG)
def test_a_forbidden_part_is_named(overrides: dict[str, Any], where: str, code: str) -> None:
    problems = judged(overrides)
    assert isinstance(problems, list)
    assert [(problem.where, problem.reason_code) for problem in problems] == [
        (f"spec.pods[0].podOverrides.{where}", code)
    ]


def test_what_is_allowed_passes() -> None:
    examples: dict[type, Any] = {dict: {"team": "a"}, list: [], str: "x"}
    overrides: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    for path, kind in OVERRIDABLE.items():
        part, name = path.split(".")
        overrides[part][name] = examples[kind]
    # The words of an annotation are free.
    overrides["metadata"]["annotations"] = {"a.example/note": "two words"}
    assert isinstance(judged(overrides), PPOJob)
