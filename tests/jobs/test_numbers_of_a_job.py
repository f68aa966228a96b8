"""What the numbers of whole jobs must show: a thin controller, accounted time, known names, KL."""

import json
import statistics
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
from tiers import first_in_test

ALGORITHM = {"type": "grpo", "promptsPerStep": 16, "samplesPerPrompt": 8}
REWARD = """
def odd_length(data_source, solution_str, ground_truth, extra_info):
    return [0.25, 0.75][len(solution_str) % 2]
"""


def test_the_controller_is_thin(start, tiny_job, tiny_data, tmp_path: Path):
    """Bytes change by under 5 % with responses twice as long, of scores of as many digits."""
    rewards = tiny_jobs.reward_at(tmp_path / "odd_length.py", REWARD)
    found = {}
    for tokens in (16, 32):
        output = tmp_path / str(tokens)
        data = {**tiny_data, "maxResponseTokens": tokens}
        job = tiny_job(data=data, algorithm=ALGORITHM, rewards=rewards, steps={"total": 3})
        start(job, output).succeed()
        steps = [record for record in run_folders.metrics(output) if record["step"] > 1]
        found[tokens] = (
            min(s["rpc/sent_bytes"] + s["rpc/received_bytes"] for s in steps),
            statistics.mean(s["response_length/mean"] for s in steps),
        )
    (short_bytes, short_length), (long_bytes, long_length) = found[16], found[32]
    assert long_length > 1.7 * short_length, found
    assert abs(long_bytes / short_bytes - 1) < 0.05, found


def test_every_metric_is_in_the_table_and_time_is_accounted_for(start, tiny_job, output: Path):
    algorithm = {**ALGORITHM, "kl": {"in": "reward", "controller": "adaptive", "target": 0.1}}
    start(tiny_job(algorithm=algorithm), output).succeed()
    records = run_folders.metrics(output)
    assert not run_folders.unnamed(records)
    # Steps of 50 ms: what another process takes from the controller falls between its stages, so
    # the best of them shows the controller's own.
    assert min(record["perf/unaccounted_share"] for record in records if record["step"] > 1) <= 0.05
    told = [record["step"] for record in records if "timing_s/save_checkpoint" in record]
    assert told == list(range(3, 12, 2)), "the step behind a checkpoint has its time"
    coefficients = [record["actor/reward_kl_penalty_coeff"] for record in records[1:]]
    assert len(set(coefficients)) > 1, "the adaptive coefficient moves"


@pytest.mark.parametrize("mini_batch", first_in_test([16, 8]))
def test_a_step_without_signal_is_not_one_without_entropy(
    mini_batch, start, tiny_job, tmp_path, output
):
    """Where all samples of all prompts score alike, updates compute nothing."""
    alike = "def alike(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"
    algorithm = {**ALGORITHM, "miniBatchPrompts": mini_batch}
    rewards = tiny_jobs.reward_at(tmp_path / "alike.py", alike)
    updates = 2 * 16 // mini_batch
    optimizer = {"learningRate": 1e-3, "warmupSteps": updates}
    job = tiny_job(algorithm=algorithm, rewards=rewards, optimizer=optimizer, steps={"total": 2})
    start(job, output).succeed()
    step = run_folders.metrics(output)[-1]
    assert step["training/zero_signal_groups"] == 1.0
    assert step["actor/ppo_kl"] is None, "nothing was computed"
    last_rate = 1e-3 * (updates - 1) / updates
    assert step["actor/lr"] == pytest.approx(last_rate), "that of the last optimizer step"
    before = [step[name] for name in ("actor/entropy", "training/rollout_probs_diff_mean")]
    if mini_batch == 16:
        assert before == [None, None], "the one update computed nothing"
    else:
        assert before[0] > 1.0, "the pass for old log-probabilities computed everything"


def test_a_run_goes_on_with_its_own_overrides(start, tiny_job, tiny_folder, output: Path):
    def job(epsilon: float, total: int) -> Path:
        model = {"path": str(tiny_folder / "model"), "configOverrides": {"rms_norm_eps": epsilon}}
        return tiny_job(model=model, steps={"total": total}, checkpoint={"every": 1})

    start(job(0.1, 1), output).succeed()
    other = start(job(0.2, 2), output)
    assert other.wait() == 2
    assert any(line.startswith("spec.model.configOverrides.rms_norm_eps") for line in other.lines)
    start(job(0.1, 2), output).succeed()
    steps = [record for record in run_folders.metrics(output) if record["step"]]
    assert len(steps) == 2
    assert all(record["training/rollout_probs_diff_mean"] < 1e-6 for record in steps)
    assert json.loads((output / "export" / "config.json").read_text())["rms_norm_eps"] == 0.1


@pytest.mark.vllm
def test_all_models_of_a_job_read_one_configuration(start, tiny_job, tiny_folder, output: Path):
    """vLLM, two ranks that share the policy, and the reference; the export begins another job."""
    scaling = {"type": "yarn", "factor": 8.0, "originalMaxPositionEmbeddings": 16}
    job = tiny_job(
        model={
            **{"path": str(tiny_folder / "model"), "ropeScaling": scaling},
            "configOverrides": {"rms_norm_eps": 0.1, "rope_theta": 50},
        },
        **tiny_jobs.PPO,
        rollout={"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16},
        roles={"actorRollout": {"ranksPerReplica": 2}},
        steps={"total": 2, "validateEvery": 2},
    )
    start(job, output).succeed(240)
    steps = [record for record in run_folders.metrics(output) if record["step"]]
    assert all(record["training/rollout_probs_diff_mean"] < 1e-6 for record in steps)
    assert steps[0]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-6)
    config = json.loads((output / "export" / "config.json").read_text())
    assert config["max_position_embeddings"] == 128
    assert config["rope_parameters"]["original_max_position_embeddings"] == 16
    assert (config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]) == (0.1, 50.0)
