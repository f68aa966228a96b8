"""Table of all metrics: name, unit, meaning; docs/metrics.md is generated from it.

    python -m ppojob_trainer.metrics.names > docs/metrics.md

Names are verl's where verl has one. A placeholder in angle brackets matches text without slashes
(but a data source and a reward value may have slashes). Prometheus names are derived from the rows.
"""

import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast

Kind = Literal["gauge", "counter", "histogram"]

JOB_LABEL: Final = "ppojob"
"""Label of every series with the job's name."""

UNREPEATABLE_PREFIXES: Final = ("timing", "perf/", "rpc/")
"""Two runs with one seed agree in every key except `time` and those with these prefixes."""

# Unit -> suffix with the base unit, and the factor between both.
_BASE_UNITS: Final = {
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "bytes": ("bytes", 1.0),
    "tokens": ("tokens", 1.0),
    "tokens/s": ("tokens_per_second", 1.0),
    "share": ("ratio", 1.0),
}
CUSTOM_PREFIX: Final = "actor/custom/"
"""Metrics of custom policy losses."""

_PLACEHOLDER = re.compile(r"<([a-z ]+)>")


@dataclass(frozen=True, slots=True)
class Series:
    """A metric in Prometheus."""

    name: str  # with the prefix ``ppojob_`` and the base unit; ends in ``_total`` for a counter
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()  # besides ``ppojob``
    scale: float = 1.0  # factor from the unit of the table to the base unit


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str  # key in metrics.jsonl
    unit: str
    meaning: str
    exported: tuple[str, Kind] | None = None  # name and kind, if not derived from name and unit

    @property
    def series(self) -> Series:
        """Return its series, by default a gauge; placeholders of the name become labels."""
        suffix, scale = _BASE_UNITS.get(self.unit, ("", 1.0))
        labels = tuple(label.replace(" ", "_") for label in _PLACEHOLDER.findall(self.name))
        if self.exported is not None:
            return Series(*self.exported, self.meaning, labels, scale)
        plain = _PLACEHOLDER.sub("", self.name).lower()
        words = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
        if suffix and not words.endswith(suffix):
            words = f"{words}_{suffix}"
        return Series(f"ppojob_{words}", "gauge", self.meaning, labels, scale)

    def matches(self, key: str) -> bool:
        """Whether a key of metrics.jsonl is this metric."""
        return _pattern(self.name).fullmatch(key) is not None

    def label_values(self, key: str) -> tuple[str, ...]:
        """Return the texts of the placeholders in a matching key."""
        found = _pattern(self.name).fullmatch(key)
        assert found is not None, f"{key} is no {self.name}"
        return found.groups()


def _rows(table: str) -> Iterator[Metric]:
    """Parse a table: name, unit, meaning, and optionally name and kind in Prometheus.

    Indented lines continue a row. A name with an asterisk stands for mean, max and min, and a list
    in braces for one row per entry. The mode of a rejection is a label in Prometheus.
    """
    rows = re.sub(r"\n +", " ", table.strip())
    rows = re.sub(
        r"(?m)^\{(.*)\}(.*)$", lambda m: "\n".join(one + m[2] for one in m[1].split(",")), rows
    )
    for row in rows.splitlines():
        name, unit, meaning, *exported = row.split(" | ")
        above, is_spread, _ = name.partition("*")
        if is_spread:
            yield Metric(f"{above}mean", unit, f"mean of {meaning}")
            yield Metric(f"{above}max", unit, f"largest of {meaning}")
            yield Metric(f"{above}min", unit, f"smallest of {meaning}")
            continue
        if "<mode>_" in name:
            exported = [f"ppojob_rollout_corr_rejection_{name.partition('<mode>_')[2]} gauge"]
        series, _, kind = "".join(exported).partition(" ")
        yield Metric(name, unit, meaning, (series, cast("Kind", kind)) if exported else None)


METRICS: Final = tuple(
    _rows("""
training/global_step | steps | steps done, including this one
training/epoch | epochs | pass over the data, from 0
training/rollout_probs_diff_mean | probability | mean absolute difference of trainer's and sampler's
    probability of a token, before the updates
rollout_corr/kl | nats a token | mean of the sampler's minus the trainer's log-probability, before
    the updates
rollout_corr/k3_kl | nats a token | mean of r - 1 - log r, r = trainer / engine
rollout_corr/training_ppl | 1 | perplexity of the trainer, mean over responses
rollout_corr/training_log_ppl | nats a token | mean log-perplexity of the trainer over responses
rollout_corr/rollout_ppl | 1 | perplexity of the engine, mean over responses
rollout_corr/rollout_log_ppl | nats a token | mean log-perplexity of the engine over responses
rollout_corr/log_ppl_diff | nats a token | mean of the trainer's minus the engine's log-perplexity
rollout_corr/log_ppl_abs_diff | nats a token | mean of its absolute value
rollout_corr/log_ppl_diff_max | nats a token | largest such difference
rollout_corr/log_ppl_diff_min | nats a token | smallest such difference
rollout_corr/ppl_ratio | 1 | mean over responses of the trainer's perplexity divided by the engine's
rollout_corr/chi2_token | 1 | χ²: mean of r² over tokens, minus 1
rollout_corr/chi2_seq | 1 | χ²: mean over responses of r², r the product over tokens, minus 1
rollout_corr/rollout_is_mean | 1 | mean weight over tokens, before normalization
rollout_corr/rollout_is_std | 1 | standard deviation of the weights
rollout_corr/rollout_is_max | 1 | largest weight; with weights: sequence, largest ratio
rollout_corr/rollout_is_min | 1 | smallest weight; with weights: sequence, smallest ratio
rollout_corr/rollout_is_eff_sample_size | share | (mean weight)² divided by mean (weight²)
rollout_corr/rollout_is_ratio_fraction_high | share | ratios above weightLimit
rollout_corr/rollout_is_ratio_fraction_low | share | ratios below weightFloor, or 1 / weightLimit
rollout_corr/rollout_is_oob_ratio | share | tokens whose weight is 0: ratio out of bounds
rollout_corr/rollout_is_batch_norm_factor | 1 | divisor of the weights (normalize)
rollout_corr/rollout_is_seq_mean | 1 | mean over responses of their mean weight
rollout_corr/rollout_is_seq_std | 1 | standard deviation of those
rollout_corr/rollout_is_seq_max | 1 | largest of those
rollout_corr/rollout_is_seq_min | 1 | smallest of those
rollout_corr/rollout_is_seq_max_deviation | 1 | largest distance of those from 1
rollout_corr/rollout_is_seq_fraction_high | share | responses whose mean ratio is above weightLimit
rollout_corr/rollout_is_seq_fraction_low | share | responses whose mean ratio is below the bound
rollout_corr/rollout_rs_masked_fraction | share | trained tokens that are rejected
rollout_corr/rollout_rs_seq_masked_fraction | share | responses with rejected tokens
rollout_corr/rollout_rs_<mode>_mean | nats | mean over tokens of the mode's divergence
rollout_corr/rollout_rs_<mode>_std | nats | its standard deviation, clipped at the bounds
rollout_corr/rollout_rs_<mode>_max | nats | its largest value, of tokens or responses
rollout_corr/rollout_rs_<mode>_min | nats | its smallest value, likewise
rollout_corr/rollout_rs_<mode>_fraction_high | share | share above the upper bound, likewise
rollout_corr/rollout_rs_<mode>_fraction_low | share | share below the lower bound, likewise
rollout_corr/rollout_rs_<mode>_seq_mean | nats | mean over responses of their mean divergence
rollout_corr/rollout_rs_<mode>_seq_std | nats | standard deviation of those
rollout_corr/rollout_rs_<mode>_seq_max | nats | largest of those
rollout_corr/rollout_rs_<mode>_seq_min | nats | smallest of those
rollout_corr/rollout_rs_<mode>_seq_max_deviation | nats | largest absolute value of those
rollout_corr/rollout_rs_<mode>_seq_fraction_high | share | responses whose mean is above the bound
rollout_corr/rollout_rs_<mode>_seq_fraction_low | share | responses whose mean is below the bound
rollout_corr/rollout_rs_<mode>_masked_fraction | share | trained tokens that the mode rejects
rollout_corr/rollout_rs_<mode>_seq_masked_fraction | share | responses with rejected tokens
training/zero_signal_groups | share | prompts whose samples all have the same advantage, 0
async/staleness_mean | versions | mean staleness of tokens (rollout.maxStaleness): how much older
    the weights that generated them are than those that train on them
async/staleness_max | versions | largest staleness of a token; at most rollout.maxStaleness
async/partial_rows | share | rows whose tokens were generated with several versions of the weights
train/num_gen_batches | rounds | generation rounds of a step with dynamic sampling
training/filter_groups/evicted_samples | prompts | prompts dropped for lack of signal
training/filter_groups/discarded_surplus_samples | prompts | prompts with signal that were
    dropped because the batch is full
training/filter_groups/wasted_share | share | dropped prompts, as a share of the answered ones
training/resampling/distinct_share | share | responses that resampling selected at least once
train/loss | 1 | loss on given answers: with sft the aggregated cross entropy of the trained tokens,
    with kto the mean loss of an answer, else of a pair
train/kl | nats | with kto the point z that log-ratios to the reference are compared with: their
    mean over prompts paired with answers to other prompts, at least 0
train/delta | reward | with bco the mean reward of the answers of earlier optimizer steps
{train,val}/rewards/chosen | reward | mean reward of the chosen, or good, answers: with dpo and kto
    beta times the log-ratio that the loss compares, else the reward model's output
{train,val}/rewards/rejected | reward | the same for the rejected, or bad, answers
{train,val}/rewards/margins | reward | mean difference of the rewards of chosen and rejected answers
{train,val}/rewards/accuracies | share | pairs whose chosen answer has the larger reward
actor/loss | 1 | sum of all loss terms; with online_dpo the mean loss of a pair of the step
actor/rewards/chosen | reward | with online_dpo mean reward of the chosen responses: beta times the
    log-ratio that the loss compares
actor/rewards/rejected | reward | the same for the rejected responses
actor/rewards/margins | reward | mean difference of the rewards of chosen and rejected responses
actor/rewards/accuracies | share | pairs whose chosen response has the larger reward
actor/pg_loss | 1 | policy term of the loss
actor/sft_loss | nats | with algorithm.supervised cross entropy of the demonstrations, a mean over
    their trained tokens, weighted with uncertainTokens; actor/loss includes supervised.coefficient
    times it, except with online_dpo
actor/sft_coeff | 1 | weight of actor/sft_loss, if it changes from step to step
actor/positive_loss | nats | with algorithm.positiveExamples cross entropy of the right responses, a
    mean over their trained tokens, 0 in optimizer steps without any; actor/loss includes
    positiveExamples.coefficient times it
actor/off_pg_loss | 1 | with algorithm.guidance mean policy loss of the computed tokens of given
    responses; other token metrics are then over generated responses
actor/off_ratio_mean | 1 | with algorithm.guidance mean of p / (p + gamma), p the policy's
    probability of such a token
actor/off_policy_prob | share | with algorithm.guidance mean of p
actor/pg_clipfrac | share | computed tokens at which the loss's bound is active
actor/pg_clipfrac_lower | share | computed tokens clipped by the dual clip or its equivalent
actor/pg_covfrac | share | computed tokens selected by clip_cov or kl_cov
actor/log_z | nats | log Z of trajectory_balance, the mean over the responses of a prompt; or the
    learnt log Z of flowrl
actor/custom/<value> | - | mean over computed tokens of a metric of a custom policy loss
actor/ppo_kl | nats a token | mean of old minus new log-probability
actor/entropy | nats a token | mean entropy before the updates
actor/entropy_threshold | nats a token | entropy above which tokens are trained (highEntropyShare)
actor/off_policy_frac | share | computed tokens that offPolicyThreshold masks
actor/entropy_loss | nats | entropy as the loss aggregates it
{train,actor}/router_balance_loss | 1 | load-balancing loss of a layer's router; 1 if all
    experts get the same load
{train,actor}/router_z_loss | 1 | z-loss of a layer's router: mean squared logsumexp of its logits
{train,actor}/router_max_violation | 1 | excess load of a layer's fullest expert, relative to the
    mean load; mean over layers, with routerBiasRate
{train,actor}/mtp_loss | nats a token | loss of the multi-token prediction layer (model.mtp)
actor/kl_loss | nats a token | mean KL to the reference, if it is a loss term
distillation/loss | nats a token | mean divergence from the teacher; on sampled tokens it is
    measured before the updates
distillation/taught | share | responses whose teacher reads another response or feedback, with
    distillation.reprompt
actor/entropy_coeff | 1 | weight of the entropy bonus, with entropyControl
actor/kl_coef | 1 | coefficient of the KL term in the loss
actor/reward_kl_penalty | nats a token | mean KL to the reference, subtracted from the reward
actor/reward_kl_penalty_coeff | 1 | its coefficient in this step
{train,actor,critic,reward_model}/skipped | share | optimizer steps without a finite gradient
{train,actor,critic,reward_model}/grad_norm | 1 | norm of the gradient before clipping
{train,actor,critic,reward_model}/lr | 1 | learning rate of the last optimizer step
{train,actor,critic,reward_model}/loss_scale | 1 | loss scale, with autocast float16
critic/score/* | reward | scores of responses by the reward functions
on_off_metrics/on_score | reward | with algorithm.guidance mean score of the generated responses
on_off_metrics/off_score | reward | with algorithm.guidance mean score of the given responses
on_off_metrics/on_response_length_mean | tokens | with guidance mean length of generated rows
on_off_metrics/off_response_length_mean | tokens | with guidance mean length of given rows
critic/rewards/* | reward | scores minus penalties; with algorithm.certaintyReward the learnt reward
certainty_reward/* | nats | the policy's certainty of a response, a mean over its trained tokens, or
    (type answer_probability) the probability of the known answer behind it; before the coefficient
    of algorithm.certaintyReward
reward_extra/<value>/* | - | a number that reward functions return beside the score, over the
    responses that have it
rewards/<function>/mean | reward | mean score of one of several functions, or of the reward model
    beside functions, before its weight
critic/advantages/* | 1 | advantages, over trained tokens
spo/p_hats | reward | with algorithm.type spo mean baseline of the prompts, before the step
spo/Neff | responses | with algorithm.type spo mean effective number of their responses
critic/turns_compared | share | with algorithm.type gigpo turns that began from the same state as
    another turn of their group
critic/returns/* | 1 | returns, over trained tokens
critic/values/* | 1 | values before the update, over trained tokens
critic/vf_explained_var | 1 | share of the returns' variance that the values explain
critic/vf_loss | 1 | value loss
critic/vf_clipfrac | share | trained tokens whose value was clipped
critic/vpred_mean | 1 | mean of the values in the updates
reward_model/dpo_loss | nats | cross entropy of the scores under the process reward model
reward_model/reward | reward | mean over responses of the sum of process rewards
reward_model/raw_reward | nats | mean over responses of the log-ratio to the model as it began
reward_model/dpo_acc | share | pairs of responses whose rewards are ordered like their scores,
    weighted by the difference; 1/2 for prompts without any
reward_model/dpo_acc_abs | share | responses whose reward is above 0 if and only if they are right
response_length/* | tokens | response lengths, including the end token
response_length/clip_ratio | share | truncated responses
response_length_non_aborted/* | tokens | lengths of responses that were not aborted
response_length_non_aborted/clip_ratio | share | truncated responses among them
response/aborted_ratio | share | responses aborted or empty
num_turns/* | turns | turns of a row: of the model, of tools and users, and the prompt
num_contexts/* | contexts | contexts that the model read in a row with a user
tool_call_counts/* | calls | tool calls in a row
tool/failed_share | share | failed calls and user answers
user/failed_rows | share | rows with a failed call or answer, among those with a user or program
response/given_share | share | response tokens that tools or users wrote
prompt_length/* | tokens | prompt lengths
prompt_length/clip_ratio | share | prompts as long as the limit
global_seqlen/mean | tokens | mean tokens per data-parallel rank
global_seqlen/max | tokens | most tokens of a rank, before balancing
global_seqlen/min | tokens | fewest tokens of a rank, before balancing
global_seqlen/minmax_diff | tokens | difference of the two
global_seqlen/balanced_max | tokens | most tokens of a rank, after balancing
global_seqlen/balanced_min | tokens | fewest tokens of a rank, after balancing
timing_s/step | s | the whole step | ppojob_step_duration_seconds histogram
timing_s/unaccounted | s | time of the step that no stage accounts for |
    ppojob_step_unaccounted_seconds gauge
timing_s/<stage> | s | a stage: gen, reward, old_log_prob, ref, adv, update_actor, testing and more;
    save_checkpoint is the checkpoint of the previous step (with checkpoint.background its copy) |
    ppojob_stage_duration_seconds histogram
timing_s/agent_loop/tool_calls/* | s | times of all calls of a row, during gen
timing_per_token_ms/<stage> | ms | time of a stage per token: gen per response token, others per
    prompt and response token | ppojob_stage_token_seconds gauge
perf/total_num_tokens | tokens | prompt and response tokens; a prompt counts once per response |
    ppojob_tokens_total counter
perf/time_per_step | s | the whole step
perf/throughput | tokens/s | tokens per second and device (GPU, or rank without GPU)
perf/kv_cache_usage | share | used share of vLLM's KV cache; this and the next four are means over
    engines and their steps
perf/prefix_cache_hit_rate | share | first tokens of rows found in vLLM's prefix cache
perf/preemptions_per_row | 1 | how often vLLM preempts a row and computes it again: well above 0 the
    KV cache is too small (rollout.kvCacheGib or gpuMemoryShare), or rollout.maxSequences too large
perf/rows_running | rows | rows that an engine computes at the same time
perf/rows_waiting | rows | rows that wait in an engine's queue
perf/draft_accept_rate | share | accepted guesses of speculative decoding (rollout.drafts); verl:
    rollout/spec_accept_rate
perf/draft_accept_length | tokens | tokens per row and pass in speculative decoding, including those
    past its end (rollout.drafts); verl: rollout/spec_accept_length
perf/unaccounted_share | share | part of the step that no stage accounts for
rpc/sent_bytes | bytes | bytes that the controller sent in requests since the last step |
    ppojob_rpc_sent_bytes_total counter
rpc/received_bytes | bytes | bytes that the controller received in answers |
    ppojob_rpc_received_bytes_total counter
val/loss | 1 | loss on the held-out answers: with sft the mean cross entropy of trained tokens, with
    kto the mean loss of an answer (with val/kl or val/delta), else of a pair
val/kl | nats | like train/kl, on held-out answers, promptsPerStep at a time
val/delta | reward | like train/delta, of all answers that were trained on
val-core/<data source>/acc/mean@<n> | share | mean of the function's acc, or of its score if it has
    none; mean@1 always exists
val-core/<data source>/acc/best@<n>/<moment> | share | best acc of n, mean or std over bootstraps
val-core/<data source>/acc/maj@<n>/<moment> | share | acc of the most common answer of n, likewise
val-aux/num_turns/* | turns | turns of a validation row, as `num_turns`
val-aux/<data source>/<variable>/mean@<n> | - | mean over samples, then over prompts
val-aux/<data source>/<variable>/std@<n> | - | standard deviation over a prompt's samples
val-aux/<data source>/<variable>/best@<n>/<moment> | - | largest of n, mean or std over bootstraps
val-aux/<data source>/<variable>/worst@<n>/<moment> | - | smallest of n, likewise
val-aux/<data source>/<variable>/maj@<n>/<moment> | - | the majority's value, likewise
""")
)


STEPS: Final = Series(
    "ppojob_steps_total", "counter", "steps finished; a repeated step counts again"
)
LAST_PROGRESS: Final = Series(
    "ppojob_last_progress_timestamp_seconds",
    "gauge",
    "unix seconds when the last step ended; before the first, when the controller began",
)
LAST_CHECKPOINT: Final = Series(
    "ppojob_last_checkpoint_timestamp_seconds",
    "gauge",
    "unix seconds of the last checkpoint; before the first, when the controller began",
)
CHECKPOINT_STEP: Final = Series(
    "ppojob_checkpoint_step", "gauge", "step of the last checkpoint, from which a restart resumes"
)
CONTROLLER_SERIES: Final = (STEPS, LAST_PROGRESS, LAST_CHECKPOINT, CHECKPOINT_STEP)

_POD: Final = ("role", "index")
_RANK: Final = ("role", "rank")
POD_ATTEMPT: Final = Series("ppojob_pod_attempt", "gauge", "attempt of the role that it runs", _POD)
POD_RESTARTS: Final = Series(
    "ppojob_pod_restarts_total", "counter", "restarts of the pod's ranks", _POD
)
RANK_READY: Final = Series(
    "ppojob_rank_ready", "gauge", "1 if a rank answers, 0 if it starts, has ended or hangs", _RANK
)
RANK_MEMORY: Final = Series(
    "ppojob_rank_resident_memory_bytes", "gauge", "host memory of a rank", _RANK
)
RANK_CPU: Final = Series(
    "ppojob_rank_cpu_seconds_total", "counter", "CPU time of a rank, in this attempt", _RANK
)
POD_SERIES: Final = (POD_ATTEMPT, POD_RESTARTS, RANK_READY, RANK_MEMORY, RANK_CPU)


@functools.cache  # steps have the same few keys, and each is compared with hundreds of rows
def find(key: str) -> Metric | None:
    """Return the row of a key, or None."""
    return next((metric for metric in METRICS if metric.matches(key)), None)


def render() -> str:
    """Return the text of docs/metrics.md."""
    prefixes = ", ".join(f"`{prefix}`" for prefix in UNREPEATABLE_PREFIXES)
    head = (
        "# Metrics\n\n"
        "This page lists every metric with its unit, meaning and Prometheus name. You need it "
        "to read `metrics.jsonl`, a dashboard or a tracker. It is generated from "
        "`ppojob_trainer/metrics/names.py` by "
        "`python -m ppojob_trainer.metrics.names > docs/metrics.md`.\n\n"
        "`metrics.jsonl` has one JSON object per step, with `step` and `time` (unix seconds). NaN "
        "and infinity are written as null. Two runs with one seed agree in every key except `time` "
        f"and those that begin with {prefixes}.\n\n"
        "Means per token of an update are over the trained tokens of the prompts in that update. "
        "`training.skipZeroGradientGroups` excludes prompts whose samples all have the same "
        "advantage. A mean over no tokens is null. `actor/entropy`, "
        "`training/rollout_probs_diff_mean` and `rollout_corr/kl` are measured with the policy at "
        "the beginning of the step: over all trained tokens if the step computes old "
        "log-probabilities in a separate pass (several updates, KL in the reward, "
        "`certaintyReward`, `highEntropyShare`, or `rolloutCorrection`; the first and the last not "
        "with `policyLoss.type: bypass`, `prime_rl` or `ipo`), else over the tokens of its "
        "updates. "
        "With these three, metrics of `rolloutCorrection` are those that are "
        "means over tokens, by the policy in the update, and rejected tokens count as 0 in "
        "`actor/ppo_kl`. With `rollout.topP`, `topK`, `minP` or `structuredOutput` the sampler's "
        "probabilities are normalised over the tokens that these keep; with `repetitionPenalty` "
        "they are those after it; the trainer's are over all tokens, without a penalty. The last "
        "two metrics include that difference too.\n\n"
        "The controller serves them on port 7404 under `/metrics` for Prometheus, in base "
        f"units. Every series has the label `{JOB_LABEL}`, the job's name. Gauges keep the last "
        "step's value; counters also count repeated steps after a loss.\n\n"
        "| name | unit | meaning | Prometheus |\n| --- | --- | --- | --- |\n"
    )
    rows = "".join(
        f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {_shown(metric.series)} |\n"
        for metric in METRICS
    )
    return (
        head
        + rows
        + _further("Metrics of the controller, port 7404", CONTROLLER_SERIES)
        + _further("Metrics of every pod's supervisor, port 7403", POD_SERIES)
    )


def _further(title: str, series: tuple[Series, ...]) -> str:
    rows = "".join(f"| {_shown(one)} | {one.meaning} |\n" for one in series)
    return f"\n## {title}\n\n| series | meaning |\n| --- | --- |\n{rows}"


def _shown(series: Series) -> str:
    labels = f"{{{', '.join(series.labels)}}}" if series.labels else ""
    return f"`{series.name}{labels}` {series.kind}"


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"(<[a-z ]+>)", name)
    wild = {"<data source>": "(.+)", "<value>": "(.+)", "<n>": "([0-9]+)", "<moment>": "(mean|std)"}
    wild["<mode>"] = "((?:token|seq_[a-z]+)_k[123])"
    return re.compile(
        "".join(wild.get(p, "([^/]+)") if p.startswith("<") else re.escape(p) for p in parts)
    )


if __name__ == "__main__":
    sys.stdout.write(render())
