"""What the operator makes of what a controller says, and what it leaves to the controller."""

import asyncio
import datetime
from typing import Any

import pytest
from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, SETTINGS, UID, job_manifest, make_job
from operator_jobs import observed as seen_with
from prometheus_client import REGISTRY
from simulated_cluster import SimulatedCluster

from ppojob_api import contract
from ppojob_api.v1alpha1.status import Condition, PPOJobStatus, TrainingStatus
from ppojob_api.well_known import RoleName, pod_name, workload_name
from ppojob_operator.build.objects import stateful_sets
from ppojob_operator.build.pod_template import Defaults
from ppojob_operator.conditions import condition
from ppojob_operator.kinds import CHILD_KINDS
from ppojob_operator.mirror import Mirror
from ppojob_operator.plan import plan
from ppojob_operator.reconcile import Reconciler
from ppojob_operator.situation import pod_config
from ppojob_operator.state import ControllerReport, Manifest, Pod

ROLES: tuple[RoleName, ...] = ("actorRollout", "controller", "reward", "reward")
STEPPING = TrainingStatus(epoch=1, step=3, stage="Training", last_committed_step=2)


def pods(**of_controller: Any) -> tuple[Pod, ...]:
    """All pods of the job, ready, and its controller's as it is said to be."""
    created = NOW - datetime.timedelta(seconds=5)
    made = []
    for index, role in enumerate(ROLES):
        owner = CHILDREN["StatefulSet", workload_name("sum", role)].uid
        fields: dict[str, Any] = {"is_ready": True, "config_digest": CONFIG_DIGEST}
        fields |= of_controller if role == "controller" else {}
        name = pod_name("sum", role, ROLES[:index].count(role))
        made.append(Pod("lab", name, f"p{index}", UID, role, created, owner, **fields))
    return tuple(made)


def after(
    training: TrainingStatus, report: ControllerReport | None = None, **of_controller: Any
) -> PPOJobStatus:
    """The status of a job of which this is known."""
    before = PPOJobStatus(training=training)
    seen = seen_with(pods=pods(**of_controller), controller=report)
    status = plan(make_job(before), seen, SETTINGS, NOW).status
    assert status is not None
    return status


def claim(status: PPOJobStatus, name: Any) -> tuple[str, str]:
    found = condition(status, name)
    assert isinstance(found, Condition)
    return found.status, found.reason


def test_conditions_follow_what_the_controller_says() -> None:
    status = after(STEPPING, ControllerReport("p1", "ready"))
    assert status.phase == "Running"
    assert claim(status, "Rendezvoused") == ("True", "AllRanksMet")
    assert claim(status, "Training") == ("True", "Stepping")
    assert claim(status, "Checkpointed") == ("True", "Committed")
    beginning = after(TrainingStatus(epoch=1, stage="Starting"))
    assert claim(beginning, "Rendezvoused") == ("False", "Waiting")
    assert claim(beginning, "Checkpointed") == ("False", "NoCommit")
    recovering = after(STEPPING.model_copy(update={"stage": "Recovering"}))
    assert claim(recovering, "Rendezvoused") == ("False", "Recovering")
    assert (recovering.phase, claim(recovering, "Training")[0]) == ("Recovering", "False")


@pytest.mark.parametrize(
    ("report", "of_controller"),
    [
        (ControllerReport("p1", "starting"), {}),
        (None, {"is_ready": False}),
        (None, {"is_deleting": True}),
    ],
)
def test_what_a_killed_controller_said_holds_no_more(
    report: ControllerReport | None, of_controller: dict[str, Any]
) -> None:
    status = after(STEPPING, report, **of_controller)
    assert (status.phase, claim(status, "Training")) == ("Recovering", ("False", "Waiting"))
    assert claim(status, "Rendezvoused") == ("False", "Waiting")
    assert claim(status, "Checkpointed")[0] == "True"


def test_a_controller_that_made_way_is_not_training() -> None:
    status = after(STEPPING.model_copy(update={"stage": ""}))
    assert claim(status, "Training") == ("False", "Waiting")


def test_the_way_to_the_api_server_is_the_controllers_alone() -> None:
    job = make_job()
    assert job.manifest is not None
    config = pod_config(job, job.manifest)
    defaults = Defaults("trainer:1", "IfNotPresent", "nvidia.com/gpu")
    roles = config.run.topology.with_own_pods
    with_token, with_address = [], []
    for one in stateful_sets(job, config, roles, (), defaults):
        spec = one["spec"]["template"]["spec"]
        if spec["automountServiceAccountToken"] or "serviceAccountName" in spec:
            with_token.append(one["metadata"]["name"])
        names = {variable["name"] for variable in spec["containers"][0]["env"]}
        if contract.ENV_SERVICE_ACCOUNT in names:
            with_address.append(one["metadata"]["name"])
    assert with_token == with_address == ["sum-controller"]


class WatchedCluster(SimulatedCluster):
    """A cluster that keeps what the operator writes as status."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[dict[str, Any]] = []

    async def apply_status(self, manifest: Manifest) -> Manifest:
        self.statuses.append(manifest["status"])
        return await super().apply_status(manifest)


class Life:
    """A job from its making, an operator beside it, and what has been counted since."""

    def __init__(self) -> None:
        self.cluster = WatchedCluster()
        self.cluster.put(job_manifest())
        self._counted = {name: self._count(name) for name in ("pods_ready", "first_step")}

    def _count(self, name: str) -> float:
        return REGISTRY.get_sample_value(f"ppojob_operator_{name}_seconds_count") or 0.0

    def counted(self, name: str) -> float:
        return self._count(name) - self._counted[name]

    @property
    def job(self) -> dict[str, Any]:
        return self.cluster.objects["PPOJob", "lab", "sum"]

    def train(self, **training: Any) -> None:
        """The controller writes."""
        self.cluster.put({**self.job, "status": {**self.job["status"], "training": training}})

    async def settle(self) -> None:
        for _ in range(6):
            mirror = Mirror(lambda _: None)
            for item in list(self.cluster.objects.values()):
                if item["kind"] == "PPOJob":
                    mirror.see_job(item)
                elif item["kind"] == "Pod":
                    mirror.see_pod(item)
                elif item["kind"] in CHILD_KINDS and item["kind"] != "Secret":
                    mirror.see_child(item)
            await Reconciler(self.cluster, mirror, SETTINGS).reconcile(("lab", "sum"))


def test_the_first_step_is_timed_once_and_the_training_stays_the_controllers() -> None:
    async def test() -> None:
        life = Life()
        await life.settle()
        life.cluster.ready()
        await life.settle()
        assert (life.counted("pods_ready"), life.counted("first_step")) == (1.0, 0.0)
        life.train(epoch=1, step=1, stage="Training")
        await life.settle()
        assert life.job["status"]["phase"] == "Running"
        assert (life.counted("pods_ready"), life.counted("first_step")) == (1.0, 1.0)
        life.train(epoch=1, step=5, stage="Recovering")
        await life.settle()
        assert life.job["status"]["phase"] == "Recovering"
        life.train(epoch=2, step=5, stage="Training")
        await life.settle()
        assert life.job["status"]["phase"] == "Running"
        assert (life.counted("pods_ready"), life.counted("first_step")) == (1.0, 1.0)
        assert life.job["status"]["training"] == {"epoch": 2, "step": 5, "stage": "Training"}
        assert not any("training" in status for status in life.cluster.statuses)

    asyncio.run(test())
