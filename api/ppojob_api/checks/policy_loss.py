"""Settings of the policy loss that fit neither each other nor the rest of the algorithm."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ppojob_api.checks.check import Check, conflict, no_effect, out_of_range
from ppojob_api.problem import ABSENT, Problem, ReasonCode
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.policy_loss import CLIP_FIELDS, LOSSES, BypassSpec, PolicyLossSpec

_LOSS = "spec.algorithm.policyLoss"
_MEANS = "sequence_mean_token_mean"


def settings_of_other_loss(job: PPOJob) -> Iterator[Problem]:
    """`type` names the one section that counts."""
    loss = job.spec.algorithm.policy_loss
    for kind in LOSSES:
        options = loss.options_of(kind)
        if options is not None and loss.type != kind:
            where, value = f"{_LOSS}.{to_camel(kind)}", options.model_dump(mode="json")
            yield no_effect(where, value, f"with type: {loss.type}", f"remove it, or type: {kind}")


def settings_of_clip(job: PPOJob) -> Iterator[Problem]:
    """The fields beside the sections are those of the clipped loss."""
    loss = job.spec.algorithm.policy_loss
    if loss.clips_tokens:
        return
    for name in CLIP_FIELDS:
        value = getattr(loss, name)
        if value != PolicyLossSpec.model_fields[name].default:
            why = f"with type: {loss.type}"
            yield no_effect(f"{_LOSS}.{to_camel(name)}", value, why, "remove it, or type: clip")


def dual_clip(job: PPOJob) -> Iterator[Problem]:
    """The bound is on ratios that grew."""
    bound = job.spec.algorithm.policy_loss.dual_clip
    if 0 < bound <= 1:
        where, why = f"{_LOSS}.dualClip", "it bounds ratios above 1"
        yield out_of_range(where, bound, why, "above 1, or 0 for none")


def weights_of_bypass(job: PPOJob) -> Iterator[Problem]:
    """The clipped form has the ratio itself, and no weight beside it; no weight has no limit."""
    bypass = job.spec.algorithm.policy_loss.bypass
    if bypass is None:
        return
    limit = BypassSpec.model_fields["weight_limit"].default
    if bypass.form == "clip":
        for name in ("weights", "weight_limit"):
            value = getattr(bypass, name)
            if value != BypassSpec.model_fields[name].default:
                where = f"{_LOSS}.bypass.{to_camel(name)}"
                yield no_effect(where, value, "with form: clip", "remove it, or form: reinforce")
    elif bypass.weights == "none" and bypass.weight_limit != limit:
        where, allowed = f"{_LOSS}.bypass.weightLimit", "remove it, or weights: token or sequence"
        yield no_effect(where, bypass.weight_limit, "with weights: none", allowed)


def settings_without_default(job: PPOJob) -> Iterator[Problem]:
    """The weight of DRO's penalty has no value that suits all."""
    loss = job.spec.algorithm.policy_loss
    if loss.type == "dro" and loss.dro is None:
        why, allowed = "type: dro needs it, and it has no default", "a number above 0"
        yield Problem(f"{_LOSS}.dro.beta", ABSENT, why, allowed, ReasonCode.REQUIRED)


def covariances(job: PPOJob) -> Iterator[Problem]:
    """Tokens are drawn from between two covariances."""
    options = job.spec.algorithm.policy_loss.clip_cov
    if options is not None and options.covariance_low >= options.covariance_high:
        where, low = f"{_LOSS}.clipCov.covarianceHigh", options.covariance_low
        why = f"no token lies between it and covarianceLow {low:g}"
        yield out_of_range(where, options.covariance_high, why, f"above {low:g}")


def aggregation(job: PPOJob) -> Iterator[Problem]:
    """A mean over responses is added up in one way."""
    algorithm = job.spec.algorithm
    if algorithm.policy_loss.loss.means_of_responses and algorithm.loss_aggregation != _MEANS:
        kind = algorithm.policy_loss.type
        yield conflict(
            "spec.algorithm.lossAggregation",
            algorithm.loss_aggregation,
            f"policyLoss.type: {kind} is a mean over responses of the mean over their tokens",
            _MEANS,
        )


POLICY_LOSS_CHECKS = (
    Check(settings_of_other_loss, (_LOSS,)),
    Check(settings_of_clip, (_LOSS,)),
    Check(dual_clip, (f"{_LOSS}.dualClip",)),
    Check(weights_of_bypass, (f"{_LOSS}.bypass",)),
    Check(settings_without_default, (f"{_LOSS}.type", f"{_LOSS}.dro")),
    Check(covariances, (f"{_LOSS}.clipCov",)),
    Check(aggregation, (f"{_LOSS}.type", "spec.algorithm.lossAggregation")),
)
