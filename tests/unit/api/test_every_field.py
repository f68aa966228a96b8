import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from every_field import every_field

from ppojob_api import validation
from ppojob_api.parsing import parse
from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.job import PPOJob

CANNOT_BE_SET = {
    # Not in this version, or nothing to choose from.
    "spec.model.trustRemoteCode",
    # Beside adapters.
    *("spec.model.freezeRouters", "spec.model.freezeVisionTower", "spec.model.mtp"),
    *("spec.algorithm.routerBalanceCoefficient", "spec.algorithm.routerZCoefficient"),
    "spec.algorithm.routerBiasRate",
    *(
        "spec.rewards.source.package",
        "spec.rewards.source.configMap",
        "spec.rewards.onError",
        "spec.sandbox.url",
    ),
    *("spec.algorithm.kl.referenceRefresh", "spec.algorithm.resampling.power"),
    "spec.algorithm.kl.unbiased",  # of a KL in the loss
    "spec.rollout.drafts",  # of engines on processors, without min-p
    "spec.rollout.structuredOutput",  # beside an agent
    # Beside another choice that the job makes.
    *(  # dropout of adapters, and so one rank that could share experts
        f"spec.roles.{role}.parallelism.{name}"
        for role in ("actorRollout", "critic")
        for name in ("sequence", "tensor", "expert")
    ),
    *(f"spec.algorithm.policyLoss.{name}" for name in ("clipLow", "clipHigh", "dualClip")),
    *(f"spec.algorithm.policyLoss.{name}" for name in ("dppoKl", "gspo", "sapo", "clipCov")),
    *(
        f"spec.algorithm.policyLoss.{name}"
        for name in ("klCov", "geoMean", "dro", "cispo", "vespo", "primeRl", "ipo")
    ),
    *(f"spec.algorithm.policyLoss.{name}" for name in ("gvpo", "trajectoryBalance", "flowrl")),
    *(f"spec.agent.tools.source.{name}" for name in ("url", "keyVariable", "mcpServer", "tool")),
    *(f"spec.agent.{kind}.source.configMap" for kind in ("tools", "interactions")),
    *("spec.algorithm.custom", "spec.algorithm.policyLoss.custom"),
    *("spec.agent.mcpServers", "spec.agent.interactions.interface"),
    *("spec.algorithm.policyLoss.bypass", "spec.algorithm.grpoPassk", "spec.algorithm.gdpo"),
    *("spec.algorithm.gigpo", "spec.algorithm.spo"),
    *("spec.algorithm.guidance", "spec.data.guidanceKey"),
    *("spec.algorithm.prime", "spec.critic.referencePath"),
    *("spec.algorithm.grpo", "spec.algorithm.reinforcePlusPlus"),
    *("spec.scheduling.kueue", "spec.scheduling.coscheduling"),
    *(
        f"spec{model}.optimizer.{name}"
        for model in ("", ".critic")
        for name in ("warmupRatio", "decayRatio", "power")
    ),
    *("spec.model.lora.path", "spec.critic.lora.path"),  # beside what adapters begin as
    *("spec.critic.lora.modulesToSave", "spec.rollout.adapters"),  # beside modulesToSave
    "spec.algorithm.ppo.lengthAdaptiveAlpha",  # beside lambda and criticLambda
    *("spec.algorithm.distillation", "spec.algorithm.dpo", "spec.algorithm.rewardModel"),
    *(
        "spec.algorithm.kto",
        "spec.algorithm.onlineDpo",
        "spec.data.labelKey",
        *("spec.data.marginKey", "spec.data.splitPairs"),
    ),
    *("spec.data.chosenKey", "spec.data.rejectedKey", "spec.data.validation.weight"),
    "spec.data.templateColumns",  # beside no agent
    *("spec.data.sampler", "spec.data.scoresKey"),  # beside a curriculum
    "spec.algorithm.certaintyReward",  # beside what reads scores
    *("spec.rollout.parallelism.tensor", "spec.rollout.parallelism.expert"),
    *("spec.data.seed", "spec.pods.tolerations.value"),
    *(f"spec.rollout.{name}" for name in ("kvCacheGib", "gpuMemoryShare")),
    *(f"spec.rollout.{name}" for name in ("maxBatchedTokens", "enforceEager", "engineArguments")),
    *("spec.steps.epochs", "spec.steps.validateOnly", "spec.checkpoint.resume"),
    *("spec.checkpoint.volume.size", "spec.checkpoint.volume.storageClassName"),
    "spec.steps.generateOnly",
    *(f"spec.agent.tools.{name}" for name in ("source", "parameters")),  # of one that is built in
    *(f"spec.pods.env.{name}" for name in ("value", "secret")),
    *(f"spec.pods.volumes.{name}" for name in ("claimName", "configMap", "secret")),
}


@pytest.fixture(scope="module")
def every() -> tuple[dict[str, Any], list[str]]:
    return every_field()


def test_every_field_has_another_value_than_its_default(every) -> None:
    job, unmoved = every
    assert isinstance(validation.validate(job), PPOJob)
    assert {re.sub(r"\[[0-9]+\]", "", path) for path in unmoved} == CANNOT_BE_SET


def test_null_is_absent(every) -> None:
    """To the reader of a job, so to all who judge what it has read."""
    for section, name in sections(job := copy.deepcopy(every[0])):
        value, section[name] = section[name], None
        with_null = parse(job, ())
        del section[name]
        assert parse(job, ()) == with_null, name
        section[name] = value


def sections(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    items = enumerate(value) if isinstance(value, list) else value.items()
    for key, inner in list(items):
        if isinstance(key, str):
            yield value, key
        if isinstance(inner, dict | list):
            yield from sections(inner)


def test_a_null_of_free_form_is_left_out(every) -> None:
    judged = validation.validate(every[0])
    assert isinstance(judged, PPOJob)
    assert judged.spec.rewards[0].arguments == {"limit": 1, "within": [{}]}


def test_an_unknown_field_is_told_though_it_is_null(every) -> None:
    job, _ = every
    found = validation.validate({**job, "spec": {**job["spec"], "unknown": None}})
    assert isinstance(found, list)
    (problem,) = found
    assert (problem.reason_code, problem.where) == (ReasonCode.UNKNOWN_FIELD, "spec.unknown")
