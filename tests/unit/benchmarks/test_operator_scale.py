"""The jobs of the scale benchmark are valid, and its counts leave out what is no write."""

import json

import pytest


@pytest.mark.parametrize("pods", [8, 20])
def test_what_the_bare_client_writes_is_all_that_a_job_has(benchmark_module, pods: int) -> None:
    prepared = benchmark_module("scale_jobs").prepare("lab", pods)
    assert prepared.kinds == {
        "ConfigMap": 1,
        "NetworkPolicy": 1,
        "PodDisruptionBudget": 1,
        "Role": 1,
        "RoleBinding": 1,
        "Secret": 4,
        "Service": 4,
        "ServiceAccount": 1,
        "StatefulSet": 4,
    }
    sets = [json.loads(body) for path, body in prepared.waves[-1] if "statefulsets" in path]
    assert sum(one["spec"]["replicas"] for one in sets) == pods


def test_requests_are_counted_without_streams_and_the_lease(benchmark_module) -> None:
    module = benchmark_module("operator_process")
    name = "ppojob_operator_api_requests_total"
    samples = {
        f"{name}|201|Service|create": 3.0,
        f"{name}|200|PPOJob|get": 2.0,
        f"{name}|200|Lease|update": 9.0,
        f"{name}|200|Pod|watch": 9.0,
        "ppojob_operator_leader": 1.0,
    }
    assert module.requests(samples) == {"create Service 201": 3.0, "get PPOJob 200": 2.0}
    assert module.requests(samples, writes_only=True) == {"create Service 201": 3.0}
