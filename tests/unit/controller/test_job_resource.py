from pathlib import Path

import pytest
from fake_api_server import Answer
from status_server import StatusServer, failing, make_certificate

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_trainer.controller.status_writer import (
    TAKEN_OVER,
    DisownedError,
    JobResource,
    NotWrittenError,
)
from ppojob_trainer.kubernetes_api import ApiAccess

pytestmark = pytest.mark.processes

STEP_3 = TrainingStatus(attempt=1, step=3, stage="Training", reward=0.5)
POLICY = Path(__file__).parents[3] / "helm/ppojob-operator/templates/admission-policy.yaml"


def resource(server: StatusServer, seconds: float = 10.0) -> JobResource:
    return JobResource(server.access, namespace="lab", name="sum", uid="u1", seconds=seconds)


def test_it_is_looked_once_and_then_the_training_of_one_job_is_written(server) -> None:
    one = resource(server)
    one.write(STEP_3)
    assert server.states == [{"attempt": 1, "step": 3, "reward": 0.5, "stage": "Training"}]
    status = "/apis/ppojob.dev/v1alpha1/namespaces/lab/ppojobs/sum/status"
    assert {asked.path for asked in server.requests} == {status}
    one.write(TrainingStatus(attempt=1, step=4))
    assert [one.query.get("dryRun") for one in server.requests] == ["All", None, None]
    server.version += 7  # what others write meanwhile is no hindrance
    one.write(TrainingStatus(attempt=1, step=5))
    assert [state["step"] for state in server.states] == [3, 4, 5]


@pytest.mark.parametrize("has_written", [False, True])
def test_another_job_of_the_name_or_one_that_is_gone_is_never_written_to(server, has_written):
    one = resource(server)
    if has_written:
        one.write(STEP_3)
    before = list(server.states)
    server.uid, server.version = "u2", server.version + 1
    with pytest.raises(DisownedError, match="u2"):
        one.write(STEP_3)
    server.uid = ""
    with pytest.raises(DisownedError):
        one.write(STEP_3)
    assert server.states == before


def test_a_fallen_attempt_is_told_from_a_right_that_lacks(server: StatusServer) -> None:
    fallen = "status.training.attempt: got 1: a controller of attempt 2 has taken over"
    server.faults.append(failing(403, "ppojobs.ppojob.dev 'sum' is forbidden: cannot patch"))
    with pytest.raises(NotWrittenError, match="HTTP 403: ppojobs"):
        resource(server).write(STEP_3)
    server.faults.append(failing(403, f"policy denied request: {fallen}"))
    with pytest.raises(DisownedError, match="attempt 2"):
        resource(server).write(STEP_3)
    assert TAKEN_OVER in POLICY.read_text()


@pytest.mark.parametrize(
    "fault",
    [
        *(failing(status) for status in (0, -1, 401, 404, 409, 429, 500, 503)),
        *(failing(200, body=body) for body in (b"", b"{", b'{"metadata": {}}')),
    ],
)
def test_what_may_pass_can_be_tried_again(server: StatusServer, fault: Answer) -> None:
    one = resource(server, seconds=0.3 if fault.status < 0 else 10.0)
    server.faults.extend([fault] * 3)
    with pytest.raises(NotWrittenError):
        one.write(STEP_3)
    server.faults.clear()
    one.write(STEP_3)
    assert len(server.states) == 1


def test_a_token_that_was_replaced_is_used_at_once(server: StatusServer) -> None:
    one = resource(server)
    one.write(STEP_3)
    server.set_token("second")
    one.write(STEP_3)
    assert [write.token for write in server.writes] == ["first", "second"]


def test_nothing_is_said_to_a_server_that_others_signed_for(server, tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_certificate(other)
    (other / "token").write_text("secret")
    access = ApiAccess(server.access.host, server.access.port, other)
    one = JobResource(access, namespace="lab", name="sum", uid="u1")
    with pytest.raises(NotWrittenError, match="CERTIFICATE_VERIFY_FAILED"):
        one.write(STEP_3)
    assert server.requests == []
