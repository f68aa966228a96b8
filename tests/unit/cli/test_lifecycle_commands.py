from typing import Any

from cluster_commands import JOB, call, job, status_of
from fake_api_server import Answer, FakeApiServer, Request


def patched(server: FakeApiServer, **status: Any) -> list[Request]:
    """Let the job take a patch, and have the status that follows."""

    def take(request: Request) -> Answer:
        asked = request.body["spec"]["lifecycle"]
        changed = job(status, lifecycle=asked)
        changed["metadata"]["generation"] = 2
        server.routes[f"GET {JOB}"] = Answer(value=changed)
        return Answer(value=changed)

    server.routes[f"PATCH {JOB}"] = take
    return server.requests


def test_suspend_is_one_merge_of_one_field(server: FakeApiServer) -> None:
    server.routes[f"GET {JOB}"] = Answer(value=job())
    asked = patched(server)
    assert call("suspend", "sum") == "sum: will be suspended\n"
    patch = asked[-1]
    assert patch.body == {"spec": {"lifecycle": {"suspend": True}}}
    assert patch.headers["Content-Type"] == "application/merge-patch+json"
    assert patch.query == {"fieldManager": "kubectl-ppojob"}
    assert call("suspend", "sum") == "sum: suspended already\n"
    assert [one.method for one in asked] == ["GET", "PATCH", "GET"]


def test_a_job_that_runs_is_resumed_already(server: FakeApiServer) -> None:
    server.routes[f"GET {JOB}"] = Answer(value=job())
    assert call("resume", "sum") == "sum: not suspended already\n"
    assert [one.method for one in server.requests] == ["GET"]


def test_a_job_that_is_over_is_left_alone(server: FakeApiServer) -> None:
    server.routes[f"GET {JOB}"] = Answer(value=job(status_of("Complete", "Succeeded")))
    said = call("suspend", "sum", code=2)
    assert said == 'NAME: got "sum": it has ended, Succeeded; an active job\n'


def test_waiting_is_for_what_was_asked_and_not_for_what_was(server: FakeApiServer) -> None:
    server.routes[f"GET {JOB}"] = Answer(value=job({"phase": "Running"}))
    patched(server, phase="Suspended", reason="JobSuspended", observedGeneration=2)
    told = "sum: will be suspended\nsum: Suspended: JobSuspended\n"
    assert call("suspend", "sum", "--wait") == told


def test_a_job_that_fails_while_it_is_waited_for(server: FakeApiServer) -> None:
    server.routes[f"GET {JOB}"] = Answer(
        value=job({"phase": "Suspended"}, lifecycle={"suspend": True})
    )
    patched(server, **status_of("Failed", "Failed"))
    call("resume", "sum", "--wait", code=3)
