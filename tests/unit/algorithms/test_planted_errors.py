"""Shows that the comparison with the literal forms can fail, and for which mistakes.

Each case changes one piece of the product's source, loads its modules with that change, and runs
the very comparison that the property tests run, on batches that never change. A comparison that
accepts the mistake fails here, and so does a case whose piece of source no longer exists.
"""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch
from correction_comparison import (
    compare_correction,
    compare_diagnostics,
    compare_high_entropy,
    compare_off_policy,
    compare_resampling,
    compare_row_weights,
)
from literal_comparison import (
    compare_advantages,
    compare_aggregate,
    compare_gae,
    compare_kl,
    compare_kl_gradient,
    compare_logprobs,
    compare_policy_gradient,
    compare_policy_loss,
    compare_token_baselines,
    compare_value_gradient,
    compare_value_loss,
)
from literal_loss_comparison import CASES, compare_loss, compare_loss_gradient
from planted_correction_errors import CORRECTION_MISTAKES
from planted_loss_errors import POLICY_LOSS_MISTAKES
from ragged_batches import Batch, fixed_batches

LOSSES = tuple(dict.fromkeys(case.name for case in CASES))

# Comparison by name, with the module that it looks at.
COMPARISONS: dict[str, tuple[str, Callable[[ModuleType, Batch, torch.dtype], None]]] = {
    "advantages": ("advantages", compare_advantages),
    "gae": ("gae", compare_gae),
    "token_baselines": ("token_baseline", compare_token_baselines),
    "policy_loss": ("clip", compare_policy_loss),
    "policy_gradient": ("clip", compare_policy_gradient),
    "value_loss": ("value_loss", compare_value_loss),
    "value_gradient": ("value_loss", compare_value_gradient),
    "aggregate": ("aggregate", compare_aggregate),
    "kl": ("kl", compare_kl),
    "kl_gradient": ("kl", compare_kl_gradient),
    "logprobs": ("fused_logprobs", compare_logprobs),
    "correction": ("rollout_correction", compare_correction),
    "high_entropy": ("entropy_mask", compare_high_entropy),
    "off_policy": ("off_policy_mask", compare_off_policy),
    "resampling": ("resampling", compare_resampling),
    "row_weights": ("rollout_correction", compare_row_weights),
    "diagnostics": ("rollout_diagnostics", compare_diagnostics),
    **{name: ("table", partial(compare_loss, name=name)) for name in LOSSES},
    **{f"{name}_gradient": ("table", partial(compare_loss_gradient, name=name)) for name in LOSSES},
}

# In the order in which they import each other, so that each finds the changed ones before it.
ALGORITHMS = (
    "masked", "group_scores", "advantages", "gae", "token_baseline", "value_loss", "aggregate",
    "kl",
)  # fmt: skip
POLICY_LOSSES = (
    "inputs",
    "clip",
    "bypass",
    "cispo",
    "covariance",
    "dppo",
    "dro",
    "geo_mean",
    "gpg",
    "gspo",
    "prime_rl",
    "sapo",
    "vespo",
    "table",
)
# After the losses' inputs.
CORRECTION = (
    "rollout_correction",
    "rollout_diagnostics",
    "entropy_mask",
    "off_policy_mask",
    "resampling",
)
MODULES = {
    **{name: f"ppojob_trainer.algorithms.{name}" for name in ALGORITHMS},
    **{name: f"ppojob_trainer.algorithms.policy_losses.{name}" for name in POLICY_LOSSES},
    **{name: f"ppojob_trainer.algorithms.{name}" for name in CORRECTION},
    "fused_logprobs": "ppojob_trainer.engine.fused_logprobs",
}

# (name, module that is changed, its source, what stands there instead, comparison that must fail)
MISTAKES = (
    # masked: shared by all
    ("mask dropped from row sums", "masked", "zero_outside(values, mask), lengths)",
     "values, lengths)", "advantages"),
    ("mask turned round", "masked", "torch.where(mask, values, values.new_zeros(()))",
     "torch.where(mask, values.new_zeros(()), values)", "aggregate"),
    ("mask dropped from sums", "masked", "return zero_outside(values, mask).sum()",
     "return values.sum()", "aggregate"),
    ("row mean over all tokens", "masked", "counts = row_count(mask, lengths).clamp",
     "counts = lengths.clamp", "aggregate"),
    ("row mean is a sum", "masked", "lengths) / counts.to(values.dtype)", "lengths)", "aggregate"),
    ("whitening keeps the mean", "masked", "kept - mean, mask", "kept, mask", "advantages"),
    ("whitening counts masked tokens", "masked", "count = int(mask.sum())",
     "count = mask.numel()", "advantages"),
    ("whitening divides by the variance", "masked", "torch.rsqrt(variance + WHITEN_EPSILON)",
     "1.0 / (variance + WHITEN_EPSILON)", "advantages"),
    ("whitening variance is biased", "masked", "/ (count - 1)", "/ count", "advantages"),
    ("whitening epsilon too large", "masked", "WHITEN_EPSILON = 1e-8", "WHITEN_EPSILON = 1e-4",
     "advantages"),
    # group_scores
    ("groups not sorted", "group_scores", "members[torch.argsort(groups[members], stable=True)]",
     "members", "advantages"),
    ("masked rows are members", "group_scores", "counts > 0", "counts >= 0", "advantages"),
    ("baseline added", "group_scores", "self.offset - self.groups", "self.offset + self.groups",
     "advantages"),
    ("a row alone has no score", "group_scores", "self.alone, self.base,", "self.alone, 0.0,",
     "advantages"),
    ("a row alone keeps half its score", "group_scores", "members.spread(scores[members.first])",
     "members.spread(scores[members.first] * 0.5)", "advantages"),
    ("written on masked tokens", "group_scores",
     "zero_outside(torch.repeat_interleave(rows, self.lengths), self.kept)",
     "torch.repeat_interleave(rows, self.lengths)", "advantages"),
    # advantages
    ("grpo: deviation is biased", "advantages", "(members.sizes - 1).clamp(min=1)",
     "members.sizes", "advantages"),
    ("grpo: variance for deviation", "advantages", ".clamp(min=1)).sqrt()", ".clamp(min=1))",
     "advantages"),
    ("grpo: always normalized", "advantages", "(scores)) if normalize_by_std else values",
     "(scores))", "advantages"),
    ("grpo: never normalized", "advantages", "/ members.spread(_divisor(scores)) if normal",
     "if True or normal", "advantages"),
    ("remax: baseline added", "advantages", "returns - baselines", "returns + baselines",
     "advantages"),
    ("remax: baseline on masked tokens", "advantages", "zero_outside(returns - baselines, mask)",
     "returns - baselines", "advantages"),
    ("remax: reward to go is discounted", "advantages", "mask, lengths, 1.0)",
     "mask, lengths, 0.9)", "advantages"),
    ("gdpo: rewards are summed first", "advantages", "placed[ends] = key[has_some]",
     "placed[ends] = rewards.to(torch.float64).sum(0)[has_some]", "advantages"),
    ("gdpo: weights not used", "advantages", "weight * scores.to_tokens", "scores.to_tokens",
     "advantages"),
    ("gdpo: not whitened", "advantages", "whiten(total, kept)", "zero_outside(total, kept)",
     "advantages"),
    ("gdpo: always normalized", "advantages", "normalize_by_std=normalize_by_std", "",
     "advantages"),
    ("grpo_passk: always normalized", "advantages", "if normalize_by_std:", "if True:",
     "advantages"),
    ("grpo: a row alone is scaled by 0", "advantages", "torch.where(members.sizes == 1, 1.0,",
     "torch.where(members.sizes == 1, 0.0,", "advantages"),
    ("grpo: epsilon too large", "advantages", "STD_EPSILON = 1e-6", "STD_EPSILON = 1e-4",
     "advantages"),
    ("grpo_passk: all of the best", "advantages", " == 1.0)\n", " >= 1.0)\n", "advantages"),
    ("grpo_passk: against the mean", "advantages", "members.spread(members.max(others))",
     "members.spread(members.mean(scores.offset))", "advantages"),
    ("grpo_passk: second best learns too", "advantages", "torch.where(is_ahead, best -",
     "torch.where(scores.offset == scores.offset, best -", "advantages"),
    ("grpo_passk: the worst", "group_scores", '"max", lengths', '"min", lengths', "advantages"),
    ("gpg: not scaled", "advantages", "values * (len(values) / max(1, count))", "values",
     "advantages"),
    ("gpg: counts what is not the first score", "advantages",
     "(scores.base + scores.offset).count_nonzero()", "scores.offset.count_nonzero()",
     "advantages"),
    ("rloo: own score stays in the baseline", "advantages", "sizes / (sizes - 1), 1.0", "1.0, 1.0",
     "advantages"),
    ("opo: baseline not weighted by length", "advantages", "members.sum(scores.counts)",
     "members.sizes", "advantages"),
    ("reinforce++: no discount", "advantages", "lengths), gamma)", "lengths), 1.0)", "advantages"),
    ("reinforce++: rows run into each other", "advantages", "row_count(mask, lengths), gamma",
     "mask.sum().reshape(1), gamma", "advantages"),
    ("reinforce++: sign flipped", "advantages", "rewards = token_rewards",
     "rewards = -token_rewards", "advantages"),
    ("reinforce++: advantages are not whitened", "advantages",
     "Advantages(whiten(returns, mask).to(dtype)", "Advantages(returns.to(dtype)", "advantages"),
    ("reinforce++ baseline: not whitened", "advantages",
     "whiten(tokens, scores.kept) if whitened else", "", "advantages"),
    ("rejection: rows leave their group", "group_scores",
     "Members.of(groups, row_count(mask, lengths))", "Members.of(groups, counts)", "advantages"),
    ("rejection: their rewards do not count", "group_scores",
     "torch.float64), mask, lengths)[members", "torch.float64), kept, lengths)[members",
     "advantages"),
    ("rejection: lengths of all tokens", "group_scores", "counts = row_count(kept, lengths)",
     "counts = row_count(mask, lengths)", "advantages"),
    ("gdpo: whitened over rejected tokens", "advantages", "whiten(total, kept)",
     "whiten(total, mask)", "advantages"),
    # gae
    ("gae: error has the wrong sign", "gae", "rewards + gamma * following - known",
     "known - rewards - gamma * following", "gae"),
    ("gae: next value taken off", "gae", "+ gamma * following", "- gamma * following", "gae"),
    ("gae: next value not discounted", "gae", "gamma * following", "following", "gae"),
    ("gae: own value for the next one", "gae", "known.roll(-1)", "known.clone()", "gae"),
    ("gae: value of the token before", "gae", "known.roll(-1)", "known.roll(1)", "gae"),
    ("gae: last token sees the next row", "gae",
     "following[trained.cumsum(0)[trained > 0] - 1] = 0.0", "", "gae"),
    ("gae: last token but one has no next value", "gae", "[trained > 0] - 1] = 0.0",
     "[trained > 1] - 2] = 0.0", "gae"),
    ("gae: gamma for gamma lambda", "gae", "gamma * lam)", "gamma)", "gae"),
    ("gae: lambda for gamma lambda", "gae", "gamma * lam)", "lam)", "gae"),
    ("gae: rows run into each other", "gae", "discounted_sum(errors, trained,",
     "discounted_sum(errors, trained.sum().reshape(1),", "gae"),
    ("gae: masked tokens take time", "gae", "trained = row_count(mask, lengths)",
     "mask = torch.ones_like(mask); rewards, known = token_rewards, values; trained = lengths",
     "gae"),
    ("gae: advantages not whitened", "gae", "whiten(advantages, mask).to", "advantages.to", "gae"),
    ("gae: returns of whitened advantages", "gae", "returns = advantages.clone()",
     "returns = whiten(advantages, mask)", "gae"),
    ("gae: returns without the value", "gae", "returns[mask] += known", "", "gae"),
    ("gae: value taken off the returns", "gae", "returns[mask] += known", "returns[mask] -= known",
     "gae"),
    ("discounted sum: of the entry before", "masked", "sums[at + 1]", "sums[at - 1]", "gae"),
    ("discounted sum: stops a step early", "masked", "int(lengths.max()) if",
     "int(lengths.max()) - 1 if", "gae"),
    ("discounted sum: longest segments only", "masked", "lengths > back",
     "lengths == lengths.max()", "gae"),
    # token_baseline
    ("token baseline: energy of one token", "token_baseline",
     "summed = segment_sum(ahead, counts).repeat_interleave(counts) - behind + ahead",
     "summed = ahead", "token_baselines"),
    ("token baseline: energy from behind", "token_baseline",
     "summed = segment_sum(ahead, counts).repeat_interleave(counts) - behind + ahead",
     "summed = behind", "token_baselines"),
    ("token baseline: energy without the token", "token_baseline", "- behind + ahead", "- behind",
     "token_baselines"),
    ("token baseline: probability once", "token_baseline", "1.0 - 2.0 * old", "1.0 - old",
     "token_baselines"),
    ("token baseline: squares taken off", "token_baseline", ".exp() + squares",
     ".exp() - squares", "token_baselines"),
    ("token baseline: weights not squared", "token_baseline", "rollout_weights.double().square()",
     "rollout_weights.double()", "token_baselines"),
    ("token baseline: no weights", "token_baseline", "energy if rollout_weights is None else",
     "energy if True else", "token_baselines"),
    ("token baseline: added", "token_baseline", "to_come - baseline", "to_come + baseline",
     "token_baselines"),
    ("token baseline: plain mean", "token_baseline", "(to_come * weights)[order]",
     "to_come[order]", "token_baselines"),
    ("token baseline: of all prompts", "token_baseline",
     "(numbers.repeat_interleave(lengths) * width + places)", "places", "token_baselines"),
    ("token baseline: tail keeps its own", "token_baseline",
     "baseline[_goes_on_alone(mask, lengths, groups, places)[mask]] = 0.0", "",
     "token_baselines"),
    ("token baseline: tail begins late", "token_baseline", "places >= alone", "places > alone",
     "token_baselines"),
    ("token baseline: tail behind the longest row", "token_baseline", "topk(2).values[1]",
     "topk(2).values[0]", "token_baselines"),
    ("token baseline: tools move tokens", "token_baseline",
     "places[mask] = _places(row_count(mask, lengths))", "places = _places(lengths)",
     "token_baselines"),
    *POLICY_LOSS_MISTAKES,
    # value_loss
    ("value: without the half", "value_loss", "0.5 * torch.maximum", "torch.maximum", "value_loss"),
    ("value: minimum for maximum", "value_loss", "torch.maximum(", "torch.minimum(", "value_loss"),
    ("value: clip missing", "value_loss", "values.clamp(old - value_clip, old + value_clip)",
     "values", "value_loss"),
    ("value: lower side missing", "value_loss", "clamp(old - value_clip, ", "clamp(old - 1e9, ",
     "value_loss"),
    ("value: upper side missing", "value_loss", "old + value_clip)", "old + 1e9)", "value_loss"),
    ("value: clipped around zero", "value_loss", "clamp(old - value_clip, old + value_clip)",
     "clamp(-value_clip, value_clip)", "value_loss"),
    ("value: clipped around the return", "value_loss",
     "clamp(old - value_clip, old + value_clip)",
     "clamp(returns - value_clip, returns + value_clip)", "value_loss"),
    ("value: not squared", "value_loss",
     "(values - returns).square(), (bounded - returns).square()",
     "(values - returns).abs(), (bounded - returns).abs()", "value_loss"),
    ("value: mask dropped", "value_loss", "zero_outside(x, mask) for x", "x for x", "value_loss"),
    ("value: flag turned round", "value_loss", "clipped > plain)", "clipped < plain)",
     "value_loss"),
    ("value: flag of ties", "value_loss", "clipped > plain)", "clipped >= plain)", "value_loss"),
    ("value: no gradient", "value_loss", "plain, clipped = (values -",
     "plain, clipped = (values.detach() -", "value_gradient"),
    ("value: clipped loss keeps its gradient", "value_loss", "(bounded - returns).square()",
     "(bounded.detach() + values - values.detach() - returns).square()", "value_gradient"),
    ("explained: share that is left", "value_loss", "1.0 - unexplained / whole",
     "unexplained / whole", "value_loss"),
    ("explained: upside down", "value_loss", "unexplained / whole, 0.0", "whole / unexplained, 0.0",
     "value_loss"),
    ("explained: mean square for variance", "value_loss", "(x - x.sum() / max(1, x.numel()))", "x",
     "value_loss"),
    ("explained: masked tokens count", "value_loss", ".to(torch.float64)[mask]",
     ".to(torch.float64)", "value_loss"),
    # aggregate
    ("token mean by sequences", "aggregate", "/ part.global_tokens", "/ part.global_sequences",
     "aggregate"),
    ("token mean by own tokens", "aggregate", "/ part.global_tokens", "/ part.mask.sum()",
     "aggregate"),
    ("token sum is a mean", "aggregate",
     '"token_sum": _token_sum,', '"token_sum": _token_mean,', "aggregate"),
    ("sequence sum by tokens", "aggregate",
     "part.mask) / part.global_sequences", "part.mask) / part.global_tokens", "aggregate"),
    ("scale forgotten", "aggregate", " / part.scale_tokens", "", "aggregate"),
    ("sequence mean by own rows", "aggregate", ".sum() / part.global_sequences", ".mean()",
     "aggregate"),
    ("sequence mean forgets its own mean", "aggregate",
     '"sequence_mean_token_mean": _sequence_mean_token_mean',
     '"sequence_mean_token_mean": _sequence_mean_token_sum', "aggregate"),
    # kl
    ("k1: direction swapped", "kl", "return logprobs - ref_logprobs",
     "return ref_logprobs - logprobs", "kl"),
    ("k2: without the half", "kl", "0.5 * (logprobs", "(logprobs", "kl"),
    ("k2: not squared", "kl", ".square()", ".abs()", "kl"),
    ("k3: direction swapped", "kl", "(ref_logprobs - logprobs).clamp",
     "(logprobs - ref_logprobs).clamp", "kl"),
    ("k3: log term has the wrong sign", "kl", "exp() - difference - 1.0",
     "exp() + difference - 1.0", "kl"),
    ("k3: not cut off", "kl", "K3_LIMIT = 10.0", "K3_LIMIT = 1e9", "kl"),
    ("abs: sign kept", "kl", "(logprobs - ref_logprobs).abs()", "(logprobs - ref_logprobs)", "kl"),
    ("k1+: value of k2", "kl", "slope - slope.detach() + value(logprobs, ref_logprobs).detach()",
     "slope", "kl"),
    ("k1+: own gradient", "kl", "slope - slope.detach() + value(logprobs, ref_logprobs).detach()",
     "value(logprobs, ref_logprobs)", "kl_gradient"),
    ("k1+: both gradients", "kl", "value(logprobs, ref_logprobs).detach()",
     "value(logprobs, ref_logprobs)", "kl_gradient"),
    ("kl: mask dropped", "kl", "zero_outside(ref_logprobs, mask)", "ref_logprobs", "kl"),
    ("kl: no gradient", "kl", "KL[estimator](zero_outside(logprobs,",
     "KL[estimator](zero_outside(logprobs.detach(),", "kl_gradient"),
    ("penalty added", "kl", "token_rewards - coefficient", "token_rewards + coefficient", "kl"),
    ("penalty without coefficient", "kl", "coefficient * kl)", "kl)", "kl"),
    *CORRECTION_MISTAKES,
    # fused_logprobs
    ("temperature multiplied", "fused_logprobs", "z.div_(temperature)", "z.mul_(temperature)",
     "logprobs"),
    ("temperature ignored", "fused_logprobs", "z.div_(temperature)", "z", "logprobs"),
    ("entropy has the wrong sign", "fused_logprobs", "log_s - u / s", "u / s - log_s", "logprobs"),
    ("entropy without probabilities", "fused_logprobs", "z.mul_(weights).sum", "z.sum",
     "logprobs"),
    ("squares: of what is left of z", "fused_logprobs", "q / s.square()", "q / s", "logprobs"),
    ("largest logit forgotten", "fused_logprobs", "m + log_s, entropy", "log_s, entropy",
     "logprobs"),
)  # fmt: skip


def load(
    monkeypatch: pytest.MonkeyPatch, changed: str | None = None, old: str = "", new: str = ""
) -> dict[str, ModuleType]:
    """The modules, loaded afresh with one piece of one module's source replaced."""
    modules = {}
    for name, place in MODULES.items():
        spec = importlib.util.find_spec(place)
        assert spec is not None
        assert spec.origin is not None
        with open(spec.origin, encoding="utf-8") as file:
            source = file.read()
        if name == changed:
            assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}.py"
            source = source.replace(old, new)
        module = ModuleType(spec.name)
        monkeypatch.setitem(sys.modules, spec.name, module)
        exec(compile(source, spec.origin, "exec"), module.__dict__)
        modules[name] = module
    return modules


def compare_all(modules: dict[str, ModuleType], name: str) -> None:
    module, compare = COMPARISONS[name]
    for batch in fixed_batches():
        compare(modules[module], batch, torch.float64)


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_source_as_it_is_passes(name: str, monkeypatch: pytest.MonkeyPatch):
    compare_all(load(monkeypatch), name)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_caught(
    mistake: tuple[str, str, str, str, str], monkeypatch: pytest.MonkeyPatch
):
    _, changed, old, new, comparison = mistake
    modules = load(monkeypatch, changed, old, new)
    with pytest.raises(AssertionError):
        compare_all(modules, comparison)
