"""What the operator makes of what a controller says, and what it leaves to the controller."""

from typing import Any

import pytest
from operator_bench import up
from operator_jobs import make_job, observed
from operator_plans import READY, claim, pod, status_of
from prometheus_client import REGISTRY

from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_operator.state import ControllerReport, Manifest, Pod

STEPPING = TrainingStatus(epoch=1, step=3, stage="Training", last_committed_step=2)


def pods(**of_controller: Any) -> tuple[Pod, ...]:
    """All pods of the job, ready, and its controller's as it is said to be."""
    return READY[0], pod("sum-controller-0", **{"is_ready": True, **of_controller}), *READY[2:]


def after(
    training: TrainingStatus, report: ControllerReport | None = None, **of_controller: Any
) -> PPOJobStatus:
    """The status of a job of which this is known."""
    seen = observed(pods=pods(**of_controller), controller=report)
    return status_of(make_job(PPOJobStatus(training=training)), seen)


def said(status: PPOJobStatus, name: Any) -> tuple[str, str]:
    found = claim(status, name)
    return found.status, found.reason


def test_conditions_follow_what_the_controller_says() -> None:
    status = after(STEPPING, ControllerReport("uid-sum-controller-0", "ready"))
    assert status.phase == "Running"
    assert said(status, "Rendezvoused") == ("True", "AllRanksMet")
    assert said(status, "Training") == ("True", "Stepping")
    assert said(status, "Checkpointed") == ("True", "Committed")
    beginning = after(TrainingStatus(epoch=1, stage="Starting"))
    assert said(beginning, "Rendezvoused") == ("False", "Waiting")
    assert said(beginning, "Checkpointed") == ("False", "NoCommit")
    recovering = after(STEPPING.model_copy(update={"stage": "Recovering"}))
    assert said(recovering, "Rendezvoused") == ("False", "Recovering")
    assert (recovering.phase, said(recovering, "Training")[0]) == ("Recovering", "False")


@pytest.mark.parametrize(
    ("report", "of_controller"),
    [
        (ControllerReport("uid-sum-controller-0", "starting"), {}),
        (None, {"is_ready": False}),
        (None, {"is_deleting": True}),
    ],
)
def test_what_a_killed_controller_said_holds_no_more(report, of_controller) -> None:
    status = after(STEPPING, report, **of_controller)
    assert (status.phase, said(status, "Training")) == ("Recovering", ("False", "Waiting"))
    assert said(status, "Rendezvoused") == ("False", "Waiting")
    assert said(status, "Checkpointed")[0] == "True"


def test_a_controller_that_made_way_is_not_training() -> None:
    status = after(STEPPING.model_copy(update={"stage": ""}))
    assert said(status, "Training") == ("False", "Waiting")


def counted(name: str) -> float:
    return REGISTRY.get_sample_value(f"ppojob_operator_{name}_seconds_count") or 0.0


async def test_the_first_step_is_timed_once_and_the_training_stays_the_controllers(bench) -> None:
    ready, stepped = counted("pods_ready"), counted("first_step")
    statuses: list[Manifest] = []
    apply_status = bench.cluster.apply_status

    async def watched(manifest: Manifest) -> Manifest:
        statuses.append(manifest["status"])
        return await apply_status(manifest)

    async def train(**training: Any) -> str:
        """The controller writes; answers the phase that follows."""
        job = bench.cluster.objects["PPOJob", "lab", "sum"]
        bench.cluster.put({**job, "status": {**job["status"], "training": training}})
        await bench.settle()
        return str(bench.status["phase"])

    bench.cluster.apply_status = watched  # type: ignore[method-assign]
    await up(bench)
    assert (counted("pods_ready"), counted("first_step")) == (ready + 1, stepped)
    assert await train(epoch=1, step=1, stage="Training") == "Running"
    assert counted("first_step") == stepped + 1
    assert await train(epoch=1, step=5, stage="Recovering") == "Recovering"
    assert await train(epoch=2, step=5, stage="Training") == "Running"
    assert (counted("pods_ready"), counted("first_step")) == (ready + 1, stepped + 1)
    assert bench.status["training"] == {"epoch": 2, "step": 5, "stage": "Training"}
    assert not any("training" in status for status in statuses)
