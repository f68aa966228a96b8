import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_folders
from patience import eventually
from status_server import StatusServer, failing, status_server

from ppojob_api import contract
from ppojob_api.run_config import resolve
from ppojob_cli.job_file import load_job


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    folder = tmp_path / "account"
    folder.mkdir()
    with status_server(folder) as one:
        yield one


def on_a_cluster(server: StatusServer, job: Path) -> dict[str, str]:
    """What the controller's pod is told there; the server knows the job."""
    server.uid = resolve(load_job(job, ())).uid
    return {
        contract.ENV_SERVICE_ACCOUNT: str(server.access.credentials),
        contract.ENV_API_HOST: server.access.host,
        contract.ENV_API_PORT: str(server.access.port),
    }


def stages(states: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Epoch and stage, one of each in a row."""
    turns = [(state["attempt"], state["stage"]) for state in states]
    return [turn for turn, _ in itertools.groupby(turns)]


def test_from_the_first_stage_to_the_last_state(start, tiny_job, tmp_path, server) -> None:
    output, job = tmp_path / "run", tiny_job(steps={"total": 6, "validateEvery": 3})
    server.faults.extend([failing(500), failing(0)])
    start(job, output, **on_a_cluster(server, job)).succeed()
    assert stages(server.states)[-1] == (1, "Finishing")
    assert {attempt for attempt, _ in stages(server.states)} == {1}
    steps = [state["step"] for state in server.states]
    assert steps == sorted(steps)
    last, metrics = server.states[-1], run_folders.metrics(output)[-1]
    assert (last["step"], last["totalSteps"], last["lastCheckpointStep"]) == (6, 6, 6)
    assert last["reward"] == pytest.approx(metrics["critic/score/mean"], rel=1e-3)
    assert last["responseTokens"] == pytest.approx(metrics["response_length/mean"], rel=1e-3)
    assert last["validation"] == pytest.approx(metrics["val-core/tiny/acc/mean@1"], abs=1e-3)
    assert last["tokensPerSecond"] > 0


def test_a_killed_controllers_heir_says_where_it_stands_and_makes_way(
    start: Any, tiny_job: Any, tmp_path: Path, server: StatusServer
) -> None:
    output, job = tmp_path / "run", tiny_job(steps={"total": 100_000})
    run = start(job, output, **on_a_cluster(server, job))
    run.wait_for_step(4)  # its line is there before its journal: step 3 is journaled
    os.kill(run_folders.rank_pids(output, "controller")["controller"], signal.SIGKILL)
    eventually(lambda: (2, "Training") in stages(server.states), 300)
    heir = next(state for state in server.states if state["attempt"] == 2)
    assert (heir["stage"], heir["step"] >= 3) == ("Starting", True)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.logs()
    last = server.states[-1]
    done = run_folders.metrics(output)[-1]["step"]
    assert (last["attempt"], last["stage"]) == (2, "")
    assert (last["step"], last["lastCheckpointStep"]) == (done, done)


@pytest.mark.long
def test_no_answer_is_no_hindrance(start, tiny_job, tmp_path, server) -> None:
    output, job = tmp_path / "run", tiny_job(steps={"total": 2})
    environment = on_a_cluster(server, job)
    server.faults.extend([failing(503)] * 10_000)
    start(job, output, **environment).succeed()
    assert server.requests
    assert not server.states
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    assert log.count("status.training was not written, the training continues: HTTP 503") == 1
    assert "the last state was not written" in log
