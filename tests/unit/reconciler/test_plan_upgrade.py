"""What a newer operator, which gives a job fewer roles, leaves to those that run it as it was."""

import dataclasses
from typing import Any

import pytest
from operator_jobs import CHILDREN, NOW, SETTINGS, children_of, make_job
from operator_plans import pod, status_after

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST
from ppojob_operator.conditions import condition
from ppojob_operator.difference import digest
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    Apply,
    Child,
    ControllerReport,
    Delete,
    Job,
    Observed,
    Pod,
)

OLD = "of-before"


def judged_job(status: PPOJobStatus | None = None, **changes: Any) -> Job:
    """A job whose responses a reward model alone scores: no role `reward` any more."""
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2}
    fields = {"algorithm": algorithm, "rewardModel": {"path": "/models/judge"}, "roles": {}}
    job = make_job(status, **{**fields, **changes})
    assert not job.problems
    return job


def as_before(child: Child) -> Child:
    """A StatefulSet whose pods run another configuration."""
    template = child.manifest["spec"]["template"]
    metadata = {**template["metadata"], "annotations": {ANNOTATION_CONFIG_DIGEST: OLD}}
    spec = {**child.manifest["spec"], "template": {**template, "metadata": metadata}}
    annotations = {**child.manifest["metadata"]["annotations"], "ppojob.dev/template-digest": OLD}
    head = {**child.manifest["metadata"], "annotations": annotations}
    return dataclasses.replace(child, manifest={**child.manifest, "metadata": head, "spec": spec})


def there(*without: str) -> dict[Any, Child]:
    """What an older operator has made for the job, and pods for rewards among it."""
    reward = dataclasses.replace(CHILDREN["StatefulSet", "sum-reward"], uid="uid-set-of-reward")
    every = {**children_of(judged_job()), ("StatefulSet", "sum-reward"): reward}
    return {
        key: as_before(child) if child.kind == "StatefulSet" else child
        for key, child in every.items()
        if child.name not in without
    }


def pods_before(**fields: Any) -> tuple[Pod, ...]:
    """The controller and a pod for rewards, which it asks."""
    fields = {"owner_uid": "", "config_digest": OLD, "is_ready": True, **fields}
    return pod("sum-controller-0", "controller", **fields), pod("sum-reward-0", "reward", **fields)


def deleted(job: Job, seen: Observed) -> list[str]:
    planned = plan(job, seen, SETTINGS, NOW)
    return [one.name for wave in planned.waves for one in wave if isinstance(one, Delete)]


@pytest.mark.parametrize("pods", [pods_before(), ()])
def test_pods_that_a_running_controller_asks_stay(pods: tuple[Pod, ...]) -> None:
    """Also while its pod is made anew: it gets the configuration that it had."""
    assert deleted(judged_job(), Observed(children=there(), pods=pods)) == []


def test_they_stay_until_the_controller_has_the_new_configuration() -> None:
    edited = dataclasses.replace(judged_job(steps={"total": 9}), generation=2)
    planned = plan(edited, Observed(children=there(), pods=pods_before()), SETTINGS, NOW)
    acts = [one for wave in planned.waves for one in wave]
    applied = {
        one.manifest["metadata"]["name"]: one.manifest for one in acts if isinstance(one, Apply)
    }
    assert not any(isinstance(one, Delete) for one in acts)
    controller = dataclasses.replace(
        there()["StatefulSet", "sum-controller"], manifest=applied["sum-controller"]
    )
    now_there = {**there(), ("StatefulSet", "sum-controller"): controller}
    ending = Observed(children=now_there, pods=pods_before())
    assert deleted(edited, ending) == []
    replaced = Observed(children=now_there, pods=pods_before(config_digest="new"))
    assert deleted(edited, replaced) == ["sum-reward"]


def test_at_a_suspension_they_go_behind_the_controller() -> None:
    paused = judged_job(lifecycle={"suspend": True})
    committing = Observed(children=there("sum-controller"), pods=pods_before(is_deleting=True))
    assert deleted(paused, committing) == []
    gone = Observed(children=there("sum-controller"), pods=pods_before()[1:])
    assert set(deleted(paused, gone)) == {"sum-actor-rollout", "sum-reward"}


def test_at_the_end_they_go_with_all_others() -> None:
    report = ControllerReport("uid-sum-controller-0", "done", "", 0)
    seen = Observed(children=there(), pods=pods_before(), controller=report)
    done = status_after(plan(judged_job(), seen, SETTINGS, NOW))
    assert "sum-reward" in deleted(judged_job(done), seen)


def test_they_do_not_stand_in_for_pods_that_are_not_ready() -> None:
    pods = (*pods_before(), pod("sum-actor-rollout-0", "actorRollout", owner_uid=""))
    planned = plan(judged_job(), Observed(children=there(), pods=pods), SETTINGS, NOW)
    said = condition(status_after(planned), "PodsReady")
    assert said is not None
    assert (said.status, said.message) == ("False", "1 of 2 pods are ready")


def scaled(child: Child, replicas: int) -> Child:
    """A StatefulSet that somebody has scaled by hand."""
    spec = {**child.manifest["spec"], "replicas": replicas}
    return dataclasses.replace(child, manifest={**child.manifest, "spec": spec})


def upgraded(replicas: int, name: str = "sum-reward") -> tuple[dict[Any, Child], list[Any]]:
    """What an older operator made and somebody scaled, and what a newer one does about it."""
    children = {
        key: as_before(one) if one.kind == "StatefulSet" else one for key, one in CHILDREN.items()
    }
    children["StatefulSet", name] = scaled(children["StatefulSet", name], replicas)
    planned = plan(make_job(), Observed(children=children), SETTINGS, NOW)
    return children, [one for wave in planned.waves for one in wave]


def test_what_was_stopped_by_hand_runs_again_as_it_was() -> None:
    children, acts = upgraded(0)
    (apply,) = [one for one in acts if isinstance(one, Apply)]
    before = children["StatefulSet", "sum-reward"]
    assert apply.uid == before.uid
    assert apply.manifest == scaled(before, 2).manifest, "its template is what its pods had"
    restored = {**children, ("StatefulSet", "sum-reward"): scaled(before, 2)}
    again = plan(make_job(), Observed(children=restored), SETTINGS, NOW)
    assert not any(isinstance(one, Apply) for wave in again.waves for one in wave)


def test_a_webhook_that_keeps_it_stopped_is_not_fought() -> None:
    children, acts = upgraded(0)
    (apply,) = [one for one in acts if isinstance(one, Apply)]
    before = children["StatefulSet", "sum-reward"]
    settled = dataclasses.replace(before, settled_digest=digest(apply.manifest))
    there = {**children, ("StatefulSet", "sum-reward"): settled}
    again = plan(make_job(), Observed(children=there), SETTINGS, NOW)
    assert not any(isinstance(one, Apply) for wave in again.waves for one in wave)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_another_number_of_pods_is_the_older_operators_business(replicas: int) -> None:
    _, acts = upgraded(replicas)
    assert not any(isinstance(one, Apply) for one in acts)
