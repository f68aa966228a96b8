import dataclasses
import json
from typing import Any

import pytest
from operator_jobs import CHILDREN, NO_STATUS, children_of, make_job
from operator_plans import actions, claim, deleted, look, pod, status_after, status_of

from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST
from ppojob_operator.build.metadata import digest
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.state import Apply, Child, ChildKind, ControllerReport, Job, Observed, Pod

OLD = "of-before"
REWARD: tuple[ChildKind, str] = ("StatefulSet", "sum-reward")


def judged_job(status: PPOJobStatus = NO_STATUS, **changes: Any) -> Job:
    """A job whose responses a reward model alone scores: no role `reward` any more."""
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2}
    fields = {"algorithm": algorithm, "rewardModel": {"path": "/models/judge"}, "roles": {}}
    job = make_job(status, **{**fields, **changes})
    assert not job.problems
    return job


def as_before(child: Child) -> Child:
    """A StatefulSet whose pods run another configuration, of an operator that knew no layouts."""
    template = child.manifest["spec"]["template"]
    metadata = {**template["metadata"], "annotations": {ANNOTATION_CONFIG_DIGEST: OLD}}
    spec = {**child.manifest["spec"], "template": {**template, "metadata": metadata}}
    annotations = {**child.manifest["metadata"]["annotations"], "ppojob.dev/template-digest": OLD}
    del annotations["ppojob.dev/layout-digest"]
    head = {**child.manifest["metadata"], "annotations": annotations}
    return dataclasses.replace(child, manifest={**child.manifest, "metadata": head, "spec": spec})


def there(*without: str) -> dict[Any, Child]:
    """What an older operator has made for the job, and pods for rewards among it."""
    reward = dataclasses.replace(CHILDREN[REWARD], uid="uid-set-of-reward")
    every = {**children_of(judged_job()), REWARD: reward}
    return {
        key: as_before(child) if child.kind == "StatefulSet" else child
        for key, child in every.items()
        if child.name not in without
    }


def pods_before(**fields: Any) -> tuple[Pod, ...]:
    """The controller and a pod for rewards, which it asks."""
    fields = {"owner_uid": "", "config_digest": OLD, "is_ready": True, **fields}
    return pod("sum-controller-0", **fields), pod("sum-reward-0", **fields)


@pytest.mark.parametrize("pods", [pods_before(), ()])
def test_pods_that_a_running_controller_asks_stay(pods: tuple[Pod, ...]) -> None:
    """Also while its pod is made anew: it gets the configuration that it had."""
    assert deleted(look(judged_job(), Observed(children=there(), pods=pods))) == []


def test_they_stay_until_the_controller_has_the_new_configuration() -> None:
    edited = dataclasses.replace(judged_job(steps={"total": 9}), generation=2)
    planned = look(edited, Observed(children=there(), pods=pods_before()))
    applied = {one.manifest["metadata"]["name"]: one.manifest for one in actions(planned, Apply)}
    assert deleted(planned) == []
    controller = dataclasses.replace(
        there()["StatefulSet", "sum-controller"], manifest=applied["sum-controller"]
    )
    now_there = {**there(), ("StatefulSet", "sum-controller"): controller}
    ending = Observed(children=now_there, pods=pods_before())
    assert deleted(look(edited, ending)) == []
    replaced = Observed(children=now_there, pods=pods_before(config_digest="new"))
    assert deleted(look(edited, replaced)) == ["sum-reward"]


def test_at_a_suspension_they_go_behind_the_controller() -> None:
    paused = judged_job(lifecycle={"suspend": True})
    saving = Observed(children=there("sum-controller"), pods=pods_before(is_deleting=True))
    assert deleted(look(paused, saving)) == []
    gone = Observed(children=there("sum-controller"), pods=pods_before()[1:])
    assert set(deleted(look(paused, gone))) == {"sum-actor-rollout", "sum-reward"}


def test_at_the_end_they_go_with_all_others() -> None:
    report = ControllerReport("uid-sum-controller-0", "done", "", 0)
    seen = Observed(children=there(), pods=pods_before(), controller=report)
    done = status_of(judged_job(), seen)
    assert "sum-reward" in deleted(look(judged_job(done), seen))


def test_they_do_not_stand_in_for_pods_that_are_not_ready() -> None:
    pods = (*pods_before(), pod("sum-actor-rollout-0", owner_uid=""))
    planned = look(judged_job(), Observed(children=there(), pods=pods))
    said = claim(status_after(planned), "PodsReady")
    assert (said.status, said.message) == ("False", "1 of 2 pods are ready")


def scaled(child: Child, replicas: int) -> Child:
    spec = {**child.manifest["spec"], "replicas": replicas}
    return dataclasses.replace(child, manifest={**child.manifest, "spec": spec})


def upgraded(reward: Child) -> list[Apply]:
    """What a newer operator applies where an older one has made all, this StatefulSet among it."""
    made = {
        key: as_before(one) if one.kind == "StatefulSet" else one for key, one in CHILDREN.items()
    }
    return actions(look(make_job(), Observed(children={**made, REWARD: reward})), Apply)


@pytest.fixture
def reward() -> Child:
    return as_before(CHILDREN[REWARD])


def test_what_was_stopped_by_hand_runs_again_as_it_was(reward: Child) -> None:
    (apply,) = upgraded(scaled(reward, 0))
    assert apply.uid == reward.uid
    assert apply.manifest == reward.manifest, "its template is what its pods had"


def test_a_webhook_that_keeps_it_stopped_is_not_fought(reward: Child) -> None:
    stopped = scaled(reward, 0)
    (apply,) = upgraded(stopped)
    mutated = dataclasses.replace(stopped, mutated_digest=digest(apply.manifest))
    assert upgraded(mutated) == []


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_another_number_of_pods_is_the_older_operators_business(replicas, reward) -> None:
    assert upgraded(scaled(reward, replicas)) == []


def test_pods_of_before_are_told_of_no_field_that_a_job_does_not_set() -> None:
    """Edited, it has the image that its pods began with, which refuses fields that came later."""
    edited = make_job(steps={"total": 9})
    config = pod_config(edited, edited.validated)
    assert RunConfig.from_json(config.text) == config.run
    assert json.loads(config.text)["spec"].keys().isdisjoint({"training", "optimizer", "sandbox"})
