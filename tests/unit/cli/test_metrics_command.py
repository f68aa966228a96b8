import json

import pytest
from cluster_commands import JOB, PODS, call, job
from fake_api_server import Answer, FakeApiServer, refusal

METRICS = f"{PODS}/sum-controller-0:7404/proxy/metrics"
EXPOSITION = (
    "# HELP b_total steps\n# TYPE b_total counter\n"
    'b_total{ppojob="sum",role="reward"} 1234.0\n'
    "# HELP a_seconds duration\n# TYPE a_seconds histogram\n"
    'a_seconds_bucket{le="+Inf",ppojob="sum"} 2.0\n'
    'a_seconds_count{ppojob="sum"} 2.0\na_seconds_sum{ppojob="sum"} 0.5\n'
)


def test_a_table_by_name(server: FakeApiServer) -> None:
    server.routes |= {
        f"GET {JOB}": Answer(value=job()),
        f"GET {METRICS}": lambda _: Answer(parts=iter([EXPOSITION])),
    }
    assert call("metrics", "sum").splitlines() == [
        "a_seconds_count         2.000  duration",
        "a_seconds_sum           0.500  duration",
        'b_total{role="reward"}  1,234  steps',
    ]
    assert call("metrics", "sum", "--raw") == EXPOSITION


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(503, "no endpoints"), "no answer from pod sum-controller-0: the job is Pending"),
        (Answer(value=json.dumps("{")), ""),
    ],
)
def test_what_is_no_exposition(server: FakeApiServer, answer: Answer, said: str) -> None:
    server.routes |= {f"GET {JOB}": Answer(value=job()), f"GET {METRICS}": answer}
    assert call("metrics", "sum", code=2).startswith(f"metrics: got {said}")
