from typing import Any

from cluster_commands import EVENTS, JOB, PODS, call, job, pod, status_of
from fake_api_server import Answer, FakeApiServer, listed, refusal

LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
FREE = Answer(value={"spec": {"holderIdentity": "", "leaseDurationSeconds": 8}})
ADMITTED = {**status_of("Admitted", "Starting"), "observedGeneration": 1}


def explained(server: FakeApiServer, found: dict[str, Any], *pods: Any, **routes: Any) -> str:
    server.routes |= {f"GET {JOB}": Answer(value=found), f"GET {PODS}": listed(*pods)}
    server.routes |= {f"GET {EVENTS}": listed(), **routes}
    return " ".join(call("explain", "sum").split())


def test_everything_is_looked_at(server: FakeApiServer) -> None:
    warning = {
        "involvedObject": {"kind": "StatefulSet", "name": "sum-reward"},
        "reason": "FailedCreate",
        "message": "exceeded quota",
        "lastTimestamp": "2026-01-02T03:04:00Z",
    }
    of_an_earlier_job = {
        "involvedObject": {"kind": "StatefulSet", "name": "sum-actor-rollout"},
        "reason": "FailedCreate",
        "message": "no such class",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    routes = {
        f"GET {EVENTS}": listed(warning, of_an_earlier_job),
        f"GET {LEASE.format('ppojob-system', 'ppojob-operator')}": FREE,
    }
    said = explained(server, job(ADMITTED), pod("sum-controller-0", "controller"), **routes)
    assert "1. OperatorSilent: no operator leads" in said
    assert (
        "2. PodsDenied: reward: pod sum-reward-0: not created: exceeded quota (and 1 more)" in said
    )
    assert "3. PodsMissing: actorRollout: pod sum-actor-rollout-0: not created yet -> wait" in said


def test_an_operator_of_another_name_and_namespace(server: FakeApiServer) -> None:
    held = {f"GET {LEASE.format('team-a', 'a-ppojob-operator')}": FREE}
    place = ("--operator-namespace", "team-a", "--operator-name", "a-ppojob-operator")
    assert "OperatorSilent" not in explained(server, job(ADMITTED), **held)
    assert "OperatorSilent" in call("explain", "sum", *place)


def test_what_may_not_be_seen_is_named(server: FakeApiServer) -> None:
    server.routes |= {
        f"GET {JOB}": Answer(value=job({"phase": "Starting", "observedGeneration": 1})),
        f"GET {PODS}": refusal(403, "no pods for you"),
        f"GET {EVENTS}": refusal(403, "no events for you"),
    }
    assert call("explain", "sum").splitlines()[-2:] == [
        "not looked at: pods: no pods for you",
        "not looked at: events: no events for you",
    ]


def test_the_last_word_of_the_controller_is_read_off_the_managed_fields(server: FakeApiServer):
    stuck = {
        **status_of("Training", "Running"),
        "observedGeneration": 1,
        "training": {"step": 3, "totalSteps": 8},
    }
    running = job(stuck)
    running["metadata"]["managedFields"] = [
        {
            "manager": "ppojob-operator",
            "time": "2999-01-01T00:00:00Z",
            "fieldsV1": {"f:status": {"f:phase": {}}},
        },
        {
            "manager": "ppojob-controller",
            "time": "2026-01-02T03:04:00Z",
            "fieldsV1": {"f:status": {"f:training": {"f:step": {}}}},
        },
    ]
    pods = [pod("sum-reward-0", "reward"), pod("sum-reward-1", "reward")]
    pods += [pod("sum-controller-0", "controller"), pod("sum-actor-rollout-0", "actor-rollout")]
    said = explained(server, running, *pods)
    assert "1. StepStale: nothing new from the controller for " in said


def test_supervisors_are_asked_for_the_missing_rank(server: FakeApiServer) -> None:
    unmet = status_of("PodsReady", "Starting")
    unmet["observedGeneration"] = 1
    unmet["conditions"].append(
        {**unmet["conditions"][0], "type": "Rendezvoused", "status": "False"}
    )
    pods = [pod("sum-reward-0", "reward"), pod("sum-controller-0", "controller", ready=False)]
    lost = Answer(value={"phase": "lost", "reason": "rank 0 ended: 1"})
    supervisor = f"GET {PODS}/sum-reward-0:7403/proxy/status"
    said = explained(server, job(unmet), *pods, **{supervisor: lost})
    assert "RanksMissing: reward: pod sum-reward-0: its ranks are lost: rank 0 ended: 1" in said
    said = explained(server, job(unmet), *pods, **{supervisor: Answer(value=["no report"])})
    assert "RanksMissing" not in said
