"""Mistakes in the product, one piece of source each, for `test_literal_forms`.

By the module that is changed and the comparison that must fail: name of the mistake, what stands in
the source, what stands there instead. A comparison that sees a small mistake, such as a wrong
epsilon or a forgotten mask, sees a flipped sign too: so the small ones are here.
"""

MISTAKES = {
    ("masked", "advantages"): (
        ("mask dropped from row sums", "zero_outside(values, mask), lengths)", "values, lengths)"),
        ("whitening keeps the mean", "kept - mean, mask", "kept, mask"),
        ("whitening counts masked tokens", "count = int(mask.sum())", "count = mask.numel()"),
        ("whitening epsilon too large", "WHITEN_EPSILON = 1e-8", "WHITEN_EPSILON = 1e-4"),
    ),
    ("masked", "aggregate"): (
        ("mask turned round", "torch.where(mask, values, values.new_zeros(()))",
         "torch.where(mask, values.new_zeros(()), values)"),
        ("mask dropped from sums", "return zero_outside(values, mask).sum()",
         "return values.sum()"),
        ("row mean over all tokens", "counts = row_count(mask, lengths).clamp",
         "counts = lengths.clamp"),
    ),
    ("advantages", "advantages"): (
        ("groups not sorted", "members[torch.argsort(groups[members], stable=True)]", "members"),
        ("masked rows are members", "row_count(mask, lengths) > 0",
         "row_count(mask, lengths) >= 0"),
        ("a row alone has no score", "self.alone, self.base,", "self.alone, 0.0,"),
        ("rejection: rows leave their group", "row_count(mask, lengths) > 0", "counts > 0"),
        ("rejection: their rewards do not count", "torch.float64), mask, lengths)[rows",
         "torch.float64), kept, lengths)[rows"),
        ("rejection: lengths of all tokens", "counts = row_count(kept, lengths)",
         "counts = row_count(mask, lengths)"),
        ("grpo: deviation is biased", "(scores.sizes - 1).clamp(min=1)", "scores.sizes"),
        ("remax: baseline on masked tokens", "zero_outside(returns - baselines, mask)",
         "returns - baselines"),
        ("online_dpo: the last of equal responses", "own.argmax()",
         "(len(own) - 1 - own.flip(0).argmax())"),
        ("online_dpo: pairs of equal responses", "if own.max() > own.min():", "if len(own):"),
        ("gdpo: rewards are summed first", "placed[ends] = key[has_some]",
         "placed[ends] = rewards.to(torch.float64).sum(0)[has_some]"),
        ("grpo: epsilon too large", "STD_EPSILON = 1e-6", "STD_EPSILON = 1e-4"),
    ),
    ("gae", "gae"): (
        ("last token sees the next row", "following[trained.cumsum(0)[trained > 0] - 1] = 0.0", ""),
        ("last token but one has no next value", "[trained > 0] - 1] = 0.0",
         "[trained > 1] - 2] = 0.0"),
        ("masked tokens take time", "trained = row_count(mask, lengths)",
         "mask = torch.ones_like(mask); rewards, known = token_rewards, values; trained = lengths"),
    ),
    ("masked", "gae"): (
        ("discounted sum: of the entry before", "sums[at + 1]", "sums[at - 1]"),
        ("discounted sum: stops a step early", "int(lengths.max()) if",
         "int(lengths.max()) - 1 if"),
        ("discounted sum: longest segments only", "lengths > back", "lengths == lengths.max()"),
    ),
    ("token_baseline", "token_baselines"): (
        ("token baseline: energy of one token",
         "summed = segment_sum(ahead, counts).repeat_interleave(counts) - behind + ahead",
         "summed = ahead"),
        ("token baseline: energy without the token", "- behind + ahead", "- behind"),
        ("token baseline: tail keeps its own",
         "baseline[_is_past_all_others(mask, lengths, groups, places)[mask]] = 0.0",
         ""),
    ),
    ("implicit_rewards", "process_rewards"): (
        ("prime: the last token has a reward", "rewards[ends] = rewards[ends] * 0.0", ""),
        ("prime: mean over all tokens", "row_count(mask, lengths).clamp(min=1)",
         "lengths.clamp(min=1)"),
        ("prime: a group's tokens as they are", "sizes / others, 1.0", "1.0, 1.0"),
        ("prime: the score on all tokens", "outcome_weight * scores.to_tokens(rloo(scores))[ends]",
         "outcome_weight * scores.base[0]"),
        ("prime: sums to come are not absolute", "lengths).abs()", "lengths)"),
        ("prime: whitening of what is rejected", "whiten(returns, kept)", "whiten(returns, mask)"),
    ),
    ("implicit_rewards", "outcomes"): (
        ("prime: pairs of equal weight", "weight = wanted.abs()",
         "weight = (wanted != 0).double()"),
        ("prime: no pair is half right", "return 0.5", "return 0.0"),
        ("prime: right is above 0", "2.0 * wanted - 1.0", "wanted"),
    ),
    ("value_loss", "value_loss"): (
        ("value: mask dropped", "zero_outside(x, mask) for x", "x for x"),
        ("value: flag of ties", ", clipped > plain", ", clipped >= plain"),
        ("explained: mean square for variance", "(x - x.sum() / max(1, x.numel()))", "x"),
    ),
    ("value_loss", "value_gradient"): (
        ("value: no gradient", "plain, clipped = (values -", "plain, clipped = (values.detach() -"),
        ("value: clipped loss keeps its gradient", "(bounded - returns).square()",
         "(bounded.detach() + values - values.detach() - returns).square()"),
    ),
    ("aggregate", "aggregate"): (
        ("token mean by own tokens", "total / tokens", "total / mask.sum()"),
        ("sequence sum by tokens", "of_rows = total / sequences", "of_rows = total / tokens"),
        ("sequence mean by own rows", ".sum() / sequences", ".mean()"),
    ),
    ("kl", "kl"): (
        ("k3: not cut off", "K3_LIMIT = 10.0", "K3_LIMIT = 1e9"),
        ("k1+: value of k2", "slope - slope.detach() + value(logprobs, ref_logprobs).detach()",
         "slope"),
        ("mask dropped", "zero_outside(ref_logprobs, mask)", "ref_logprobs"),
    ),
    ("kl", "kl_gradient"): (
        ("k1+: own gradient", "slope - slope.detach() + value(logprobs, ref_logprobs).detach()",
         "value(logprobs, ref_logprobs)"),
        ("k1+: both gradients", "value(logprobs, ref_logprobs).detach()",
         "value(logprobs, ref_logprobs)"),
        ("no gradient", "KL[estimator](zero_outside(logprobs,",
         "KL[estimator](zero_outside(logprobs.detach(),"),
    ),
    ("rollout_correction", "correction"): (
        ("correction: one mode is enough", "kept = kept & one.is_kept",
         "kept = mask & one.is_kept"),
        ("correction: masked tokens weigh", "zero_outside(bounded(log_ratio).exp(), mask)",
         "bounded(log_ratio).exp()"),
        ("correction: sequence by the token", 'if level == "sequence":\n        log_ratio =',
         'if level == "":\n        log_ratio ='),
        ("rejection: bounds are no ratios", "log(self.high)", "self.high"),
    ),
    ("masked", "correction"): (
        ("rejection: masked tokens in the maximum", 'torch.segment_reduce(kept, "max"',
         'torch.segment_reduce(kept + 1.0, "max"'),
    ),
    ("rollout_correction", "row_weights"): (
        ("row weights: arithmetic mean", "(weights + LEAST_WEIGHT).log(), mask, lengths).exp()",
         "weights, mask, lengths)"),
        ("row weights: all tokens count", "LEAST_WEIGHT).log(), mask,",
         "LEAST_WEIGHT).log(), torch.ones_like(mask),"),
    ),
    ("token_masks", "high_entropy"): (
        ("high entropy: without the threshold", ">= threshold", "> threshold"),
        ("high entropy: masked tokens stay",
         "torch.where(mask, entropies, -torch.inf) >= threshold",
         "~(entropies < threshold)"),
        ("high entropy: share of all tokens", "int(share * trained.numel())",
         "min(trained.numel(), int(share * mask.numel()))"),
    ),
    ("token_masks", "off_policy"): (
        ("off policy: all advantages", " & (zero_outside(advantages, mask) < 0.0)", ""),
        ("off policy: good responses", "mask) < 0.0", "mask) > 0.0"),
        ("off policy: mean of all tokens", "row_mean(fall, mask, lengths)",
         "row_mean(fall, mask | ~mask, lengths)"),
    ),
    ("resampling", "resampling"): (
        ("not to the power", ".pow(power)", ""),
        ("the best alone", "(is_best | is_worst)", "is_best"),
        ("best of rows that nobody trains on", "candidates = scores[is_trained]",
         "candidates = scores"),
    ),
    ("rollout_diagnostics", "diagnostics"): (
        ("diagnostics: perplexity of all tokens", "row_mean(values.to(torch.float64), self.mask",
         "row_mean(values.nan_to_num().to(torch.float64), torch.ones_like(self.mask)"),
        ("diagnostics: chi2 of the ratio", "(2.0 * by_token).exp().mean() - 1.0",
         "by_token.exp().mean() - 1.0"),
        ("diagnostics: chi2 of a mean", "by_row = bounded(rows.sums(log_ratio))",
         "by_row = bounded(rows.means(log_ratio))"),
    ),
    ("fused_logprobs", "logprobs"): (
        ("temperature ignored", "else z.div_(settings.temperature)", "else z"),
        ("entropy without probabilities", "z.mul_(weights).sum", "z.sum"),
        ("squares: of what is left of z", "q / s.square()", "q / s"),
    ),
    ("clip", "clip"): (
        ("dual clip on gains too", "torch.where(negative, torch.minimum(loss, ceiling), loss)",
         "torch.minimum(loss, ceiling)"),
        ("mask dropped", "inputs.trained(inputs.advantages)", "inputs.advantages"),
    ),
    ("inputs", "clip"): (
        ("clip: log-ratio cut off too early", "LOG_RATIO_LIMIT = 20.0", "LOG_RATIO_LIMIT = 2.0"),
    ),
    ("clip", "clip_gradient"): (
        ("ratio has no gradient", "log_ratio.exp()", "log_ratio.detach().exp()"),
        ("clipped loss keeps its gradient", "-advantages * within",
         "-advantages * (within.detach() + ratio - ratio.detach())"),
    ),
    ("inputs", "sapo"): (
        ("log-ratio upside down", "self.trained(self.logprobs) - self.trained(self.old_logprobs)",
         "self.trained(self.old_logprobs) - self.trained(self.logprobs)"),
    ),
    ("inputs", "gspo"): (
        ("NaN of a masked log-probability", "self.trained(self.logprobs) -", "self.logprobs -"),
    ),
    ("inputs", "gpg"): (
        ("masked by a product", "return zero_outside(values, self.mask)",
         "return values * self.mask"),
        ("mask dropped", "return zero_outside(values, self.mask)", "return values"),
    ),
    ("inputs", "geo_mean"): (
        ("mean of all tokens of a row", "row_mean(values, self.mask, self.lengths)",
         "row_mean(values, torch.ones_like(self.mask), self.lengths)"),
    ),
    ("dppo", "dppo_tv"): (
        ("sign flipped", "LossOutput(-advantages", "LossOutput(advantages"),
        ("masks only gains", "torch.where(advantages > 0.0, is_high, is_low)",
         "((advantages > 0.0) & is_high)"),
    ),
    ("dppo", "dppo_kl"): (
        ("mask dropped", "clamp(max=ratio_limit) * is_kept", "clamp(max=ratio_limit)"),
        ("dppo_kl: only the token", " + (1.0 - old_probs) * others", ""),
        ("dppo_kl: any direction", "rose & (divergence", "(divergence"),
    ),
    ("dppo", "dppo_tv_gradient"): (
        ("weight has a gradient", "bounded(inputs.log_ratio()).detach()",
         "bounded(inputs.log_ratio())"),
    ),
    ("gspo", "gspo"): (
        ("ratio of the token", "inputs.of_row(log_ratio.detach())", "log_ratio.detach()"),
        ("value of both", "(log_ratio - log_ratio.detach())", "log_ratio"),
    ),
    ("gspo", "gspo_gradient"): (
        ("gradient of the response", "inputs.of_row(log_ratio.detach())",
         "inputs.of_row(log_ratio)"),
        ("no gradient of the token", "(log_ratio - log_ratio.detach())",
         "inputs.of_row(log_ratio - log_ratio.detach())"),
    ),
    ("sapo", "sapo"): (
        ("temperatures swapped", "advantages > 0.0", "advantages < 0.0"),
        ("gate around 0", "log_ratio.exp() - 1.0", "log_ratio.exp()"),
    ),
    ("vespo", "vespo"): (
        ("mean of the response",
         "row_sum(log_ratio, inputs.mask, inputs.lengths).repeat_interleave(inputs.lengths)",
         "inputs.of_row(log_ratio)"),
        ("not 1 at a ratio of 1", "fall * (1.0 - log_w.exp())", "fall * -log_w.exp()"),
    ),
    ("vespo", "vespo_gradient"): (
        ("the weight has a gradient", "inputs.log_ratio().detach()", "inputs.log_ratio()"),
    ),
    ("sapo", "sapo_gradient"): (
        ("gradient of the log-ratio", "log_ratio.exp() - 1.0",
         "log_ratio.detach().exp() + log_ratio - log_ratio.detach() - 1.0"),
    ),
    ("gpg", "gpg"): (
        ("sign flipped", "loss = -inputs", "loss = inputs"),
        ("ratio for log-probability", "inputs.trained(inputs.logprobs)",
         "inputs.log_ratio().exp()"),
    ),
    ("covariance", "clip_cov"): (
        ("clip_cov: covariance of raw columns",
         "kept - kept.sum() / inputs.mask.sum().clamp(min=1)",
         "kept"),
        ("clip_cov: mean over masked tokens", "inputs.mask.sum().clamp(min=1)",
         "inputs.mask.numel()"),
        ("clip_cov: clipped tokens drawn too", " & ~is_clipped)", ")"),
    ),
    ("covariance", "kl_cov"): (
        ("kl_cov: share of all tokens", "int(share * int(inputs.mask.sum()))",
         "int(share * inputs.mask.numel())"),
        ("kl_cov: penalty without weight", "coefficient * log_ratio.abs()", "log_ratio.abs()"),
        ("kl_cov: penalty without absolute value", "log_ratio.abs()", "log_ratio"),
    ),
    ("geo_mean", "geo_mean"): (
        ("sum for mean", "inputs.of_row(worse).exp()", "(inputs.of_row(worse) * 2).exp()"),
        ("masked tokens have the row's loss", "inputs.trained(-inputs.of_row", "(-inputs.of_row"),
    ),
    ("geo_mean", "geo_mean_gradient"): (
        ("clipped keeps its gradient", "sign * cut.clamp(-clip_low, clip_high)",
         "sign * (cut.clamp(-clip_low, clip_high).detach() + cut - cut.detach())"),
    ),
    ("dro", "dro"): (
        ("penalty rewarded", ".square() - gain", ".square() * -1.0 - gain"),
        ("without the half", "0.5 * beta", "beta"),
    ),
    ("dro", "dro_gradient"): (
        ("penalty has no gradient", "log_ratio.square()", "log_ratio.detach().square()"),
    ),
    ("group_variance", "gvpo"): (
        ("gvpo: biased variance", "sizes / (sizes - 1.0).clamp(min=1.0)", "1.0"),
        ("gvpo: reward of all tokens", "row_mean(inputs.advantages", "row_sum(inputs.advantages"),
        ("gvpo: groups not sorted", "rows[torch.argsort(inputs.groups[rows], stable=True)]",
         "rows"),
        ("gvpo: rows without tokens are members", "rows_with_any(inputs.mask, inputs.lengths)",
         "torch.arange(len(inputs.lengths))"),
    ),
    ("group_variance", "gvpo_gradient"): (
        ("gvpo: the mean has a gradient", "values.detach()[rows]", "values[rows]"),
    ),
    ("group_variance", "trajectory_balance"): (
        ("trajectory balance: to the old policy", "inputs.trained(inputs.ref_logprobs)",
         "inputs.trained(inputs.old_logprobs)"),
        ("trajectory balance: reward times beta", "_rewards(inputs) / beta",
         "_rewards(inputs) * beta"),
        ("trajectory balance: partition upside down", "_to_tokens(-means", "_to_tokens(means"),
    ),
    ("cispo", "cispo"): (
        ("sign flipped", "loss = -weight", "loss = weight"),
        ("weight not clipped", "loss = -weight", "loss = -ratio"),
    ),
    ("cispo", "cispo_gradient"): (
        ("weight has a gradient", "bounded(inputs.log_ratio()).detach()",
         "bounded(inputs.log_ratio())"),
    ),
    ("prime_rl", "prime_rl"): (
        ("against the old policy", "- inputs.trained(inputs.rollout_logprobs).exp",
         "- inputs.trained(inputs.old_logprobs).exp"),
        ("penalty is masked", "* log_ratio.square() - gain",
         "* log_ratio.square() * ~is_far - gain"),
    ),
    ("prime_rl", "ipo"): (
        ("ratio to the old policy",
         "inputs.trained(inputs.logprobs) - inputs.trained(inputs.rollout_logprobs)",
         "inputs.log_ratio()"),
        ("mask dropped", ".exp() * ~is_far", ".exp()"),
        ("ipo: one direction", "_moved(inputs).abs() >", "_moved(inputs) >"),
    ),
    ("prime_rl", "prime_rl_gradient"): (
        ("penalty has no gradient", "* log_ratio.square()", "* log_ratio.detach().square()"),
    ),
    ("prime_rl", "ipo_gradient"): (
        ("ratio has no gradient", "bounded(log_ratio).exp() *",
         "bounded(log_ratio).detach().exp() *"),
    ),
    ("bypass", "bypass"): (
        ("against the old policy", "old_logprobs=inputs.rollout_logprobs",
         "old_logprobs=inputs.old_logprobs"),
        ("sign flipped", "loss = -inputs", "loss = inputs"),
    ),
}  # fmt: skip
