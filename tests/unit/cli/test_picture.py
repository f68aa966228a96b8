import io
from typing import Any

import pytest
from operator_jobs import NOW, make_job
from rich.console import Console

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_cli.cluster.picture import drawing, plain_lines
from ppojob_operator.state import Job

STATUS: dict[str, Any] = {
    "phase": "Running",
    "reason": "Stepping",
    "training": {
        "step": 3,
        "totalSteps": 8,
        "reward": 0.5,
        "kl": 0.0012,
        "tokensPerSecond": 8231.0,
        "stage": "Training",
        "eta": "1h30m",
        "validation": 0.42,
        "lastCheckpointStep": 2,
    },
    "roles": [
        {"name": "controller", "replicas": 1, "ready": 1},
        {"name": "actorRollout", "replicas": 16, "ready": 9, "restarts": 3},
    ],
    "conditions": [
        {
            "type": "Training",
            "status": "True",
            "reason": "Stepping",
            "lastTransitionTime": "2026-01-02T03:01:05Z",
        }
    ],
    "failures": [
        {
            "pod": "sum-reward-0",
            "uid": "u",
            "restart": 1,
            "role": "reward",
            "kind": "transient",
            "reason": reason,
            "message": "mem\x1b[31mory",
            "step": 2,
            "time": "2026-01-02T03:03:05Z",
        }
        for reason in ("Oldest", "Old", "OOMKilled", "Latest")
    ],
}
PLAIN = """\
sum: Running
  step        step 3 of 8  37 %  1h30m left
  why         Stepping
  now         reward 0.500  KL 0.001  tokens/s 8,231  training
  validation  0.420
  checkpoint  step 2
  roles       role          ready  restarts
              controller    1/1    0
              actorRollout  9/16   3
  conditions  condition  status  reason    since
              Training   True    Stepping  3 min 00 s ago
  failures    sum-reward-0  step 2  transient  1 min 00 s ago  Latest: mem\\x1b[31mory
              sum-reward-0  step 2  transient  1 min 00 s ago  OOMKilled: mem\\x1b[31mory
              sum-reward-0  step 2  transient  1 min 00 s ago  Old: mem\\x1b[31mory
"""


def job(status: dict[str, Any]) -> Job:
    return make_job(PPOJobStatus.model_validate(status))


def drawn(status: dict[str, Any], encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=100, color_system=None)
    console.print(drawing(job(status), NOW, console))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_lines() -> None:
    assert "\n".join(plain_lines(job(STATUS), NOW)) + "\n" == PLAIN


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_panel_says_the_same(encoding: str) -> None:
    said = " ".join(drawn(STATUS, encoding).split())
    assert [
        word for line in PLAIN.splitlines()[2:] for word in line.split() if word not in said
    ] == []
    assert "sum: Running" in said
    assert "37 % 1h30m left" in said


def test_a_job_of_which_little_is_known() -> None:
    assert list(plain_lines(job({}), NOW)) == ["sum: Pending"]
    assert "sum: Pending" in drawn({})
    lines = list(plain_lines(job({"training": {"step": 1}}), NOW))
    assert lines[1:] == ["  step        step 1"]
