"""Settings that have an effect only with some values of another field."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.rule import Rule, rules, words
from ppojob_api.v1alpha1.estimators import ESTIMATORS, GIVEN
from ppojob_api.v1alpha1.policy_loss import LOSSES

_OPTIMIZERS = "spec.optimizer spec.critic.optimizer"
_FINITE = "linear cosine polynomial"
_TYPES = (*ESTIMATORS.items(), *GIVEN.items())
_WITH_CRITIC = " ".join(sorted(name for name, one in ESTIMATORS.items() if one.has_critic))

_AT_ADMISSION = (
    (_OPTIMIZERS, "muon", "type", "muon"),
    (_OPTIMIZERS, "momentum", "type", "muon sgd"),
    (_OPTIMIZERS, "decaySteps decayRatio stableRatio", "schedule", _FINITE),
    (_OPTIMIZERS, "minLearningRateRatio", "schedule", f"{_FINITE} inverse_sqrt"),
    (_OPTIMIZERS, "cycles", "schedule", "cosine"),
    (_OPTIMIZERS, "power", "schedule", "polynomial"),
    ("spec.model.ropeScaling", "originalMaxPositionEmbeddings", "type", "yarn llama3"),
    ("spec.rollout", "kvCacheGib gpuMemoryShare maxBatchedTokens", "engine", "vllm"),
    ("spec.rollout", "drafts enforceEager", "engine", "vllm"),
    ("spec", "critic roles.critic", "algorithm.type", _WITH_CRITIC),
    ("spec.algorithm", "lossScaleTokens", "lossAggregation", "sequence_mean_token_sum_norm"),
    ("spec.algorithm.resampling", "power", "method", "pow"),
    ("spec.algorithm.rolloutCorrection", "weightLimit weightFloor", "weights", "token sequence"),
    ("spec.algorithm.rolloutCorrection", "normalize", "weights", "token sequence"),
    ("spec.scheduling", "kueue", "type", "kueue"),
    ("spec.scheduling", "volcano", "type", "volcano"),
    ("spec.scheduling", "coscheduling", "type", "coscheduling"),
    *(("spec.algorithm", to_camel(name), "type", name) for name, one in _TYPES if one.options),
    *(
        ("spec.algorithm.policyLoss", to_camel(name), "type", name)
        for name, one in LOSSES.items()
        if one.options
    ),
)
_HERE = (
    (_OPTIMIZERS, "betas epsilon amsgrad", "type", "adamw muon"),
    (_OPTIMIZERS, "decoupledWeightDecay", "type", "adamw"),
    ("spec.model.ropeScaling", "lowFreqFactor highFreqFactor", "type", "llama3"),
    ("spec.rollout", "engineArguments", "engine", "vllm"),
    ("spec.algorithm.certaintyReward", "marker debias", "type", "answer_probability"),
    ("spec.algorithm.distillation", "beta", "divergence", "jsd"),
    ("spec.algorithm.supervised", "decaySteps minCoefficient", "schedule", "linear cosine"),
    ("spec", "data.marginKey", "algorithm.type", "reward_model"),
    ("spec", "data.splitPairs data.labelKey", "algorithm.type", "kto"),
)
"""Sections, fields, the other field of the section, and its values with which they have an effect.
The second table is not evaluated at admission."""


def _alternatives(values: list[str]) -> str:
    """Return `a`, `a or b` or `a, b or c`."""
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def _rules(table: tuple[tuple[str, str, str, str], ...], here: str) -> tuple[Rule, ...]:
    return rules(
        """
        $SECTIONS | $FIELDS | NoEffect$HERE
            it has an effect only with $OTHER: $NAMES; remove it, or change $OTHER ${self.$OTHER}
        must: self.$OTHER in $VALUES || $UNSET
        """,
        each=(
            {
                "SECTIONS": sections,
                "FIELDS": fields,
                "OTHER": other,
                "NAMES": _alternatives(values.split()),
                "VALUES": words(values.split()),
            }
            for sections, fields, other, values in table
        ),
        HERE=here,
    )


CHOICE_RULES = (*_rules(_AT_ADMISSION, ""), *_rules(_HERE, " | here"))
