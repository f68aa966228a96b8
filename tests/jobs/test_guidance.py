import json
from pathlib import Path
from typing import Any

import pytest
import run_folders
import tiny_jobs
from tiers import first_in_test

STEPS, SAMPLES, GIVEN = 4, 3, 2
TARGETS = ("seven", ["of course", "no", "never"], [{"role": "assistant", "content": "is it"}], None)
"""Of rows in turn; a response of more than 8 tokens is cut, and a third one is not given."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    file = tmp_path_factory.mktemp("rows") / "guided.jsonl"
    found = (tiny_folder / "train.jsonl").read_text().splitlines()
    guided = (
        {**json.loads(line), "target": TARGETS[number % len(TARGETS)]}
        for number, line in enumerate(found)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in guided))
    return file


def sections_of(rows: Path, tiny_folder: Path, **changes: object) -> dict[str, Any]:
    """Sections of a job with rounds, two updates a step, a reference, and a correction."""
    data = tiny_jobs.make_manifest(tiny_folder)["spec"]["data"]  # type: ignore[index]
    return {
        "data": {
            **data,
            "train": [{"path": str(rows)}],
            "guidanceKey": "target",
            "overlongPrompts": "truncate_right",
        },
        "algorithm": {
            "type": "grpo",
            "grpo": {"normalizeByStd": False},
            "promptsPerStep": 4,
            "samplesPerPrompt": SAMPLES,
            "miniBatchPrompts": 2,
            "guidance": {"samples": GIVEN},
            "dynamicSampling": {"maxRounds": 2},
            "kl": {"in": "loss"},
            "entropyCoefficient": 0.001,
            "rolloutCorrection": {
                "weights": "token",
                "normalize": True,
                "rejection": [{"mode": "seq_mean_k3", "high": 0.01}],
            },
            "lossAggregation": "sequence_mean_token_sum_norm",
        },
        "steps": {"total": STEPS},
        **changes,
    }


def is_given(row: dict[str, Any]) -> bool:
    return [segment["version"] for segment in row["segments"]] == [-1]


AHEAD = {
    "roles": {"rollout": {"replicas": 1}},
    "rollout": {"engine": "huggingface", "dtype": "float32", "maxStaleness": 2},
}
"""Engines in pods of their own, which draw rows of several steps side by side."""


@pytest.mark.parametrize("changes", first_in_test({"at_once": {}, "steps_ahead": AHEAD}))
def test_given_responses_are_learnt_among_drawn_ones_whatever_is_killed(
    changes, rows, tiny_folder, run_twice, replay, start, tiny_job, tmp_path
):
    sections = sections_of(rows, tiny_folder, **changes)
    if changes:
        del sections["algorithm"]["dynamicSampling"]  # not several steps ahead
    job = tiny_job(**sections)
    points = (
        "rpc.generate.answer.before@2=kill",
        "rpc.advantages.answer.after@2=kill",
        "rpc.update.answer.before@5=kill",
        "controller.step.computed@3=kill",
    )
    whole = run_twice(job, *points)
    records = run_folders.metrics(whole)
    assert run_folders.unnamed(records) == set()
    trained = [record for record in records if "actor/grad_norm" in record]
    assert len(trained) == STEPS
    for record in trained:
        kept = run_folders.rows(whole, record["step"])
        given = [row for row in kept if is_given(row)]
        drawn = [row for row in kept if not is_given(row)]
        assert given
        assert all(row["sample"] < GIVEN for row in given)
        assert all(not any(row["rollout_logprobs"]) for row in given)
        for row in given:
            text = next(
                t for t in ("seven", "of course", "no", "is it") if t[0] == row["response"][0]
            )
            assert text.startswith(row["response"])
            assert row["truncated"] == (text != row["response"])
        means = {name: record[f"on_off_metrics/{name}_score"] for name in ("on", "off")}
        assert means["on"] == pytest.approx(sum(row["score"] for row in drawn) / len(drawn))
        assert means["off"] == pytest.approx(sum(row["score"] for row in given) / len(given))
        assert 0.0 < record["actor/off_policy_prob"] < record["actor/off_ratio_mean"] < 1.0
        if changes:
            assert record["async/staleness_max"] <= 2.0
            continue
        # Nobody takes a given response for one that the engine drew with probability 1.
        assert record["training/rollout_probs_diff_mean"] < 1e-5
        assert record["rollout_corr/rollout_rs_masked_fraction"] == 0.0
        assert record["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(1.0, abs=1e-3)
    if not changes:
        replay(job, whole)
        plain = ("--set", "spec.algorithm.guidance=null", "--set", "spec.data.guidanceKey=null")
        refused = start(job, tmp_path / "plain", options=("--replay", str(whole), *plain))
        assert refused.wait() == 2
        assert "some of its responses were given, and have a loss of their own" in refused.lines[-1]
        assert not any(line.startswith("starting") for line in refused.lines)


@pytest.mark.long
def test_three_ranks_change_only_rounding(finished, rows: Path, even_folder: Path):
    """Two prompts of an update are parted over three ranks, given responses from drawn ones."""
    small = {"training": {"autocast": "none", "microBatchTokens": 60}}
    three = {"roles": {"actorRollout": {"ranksPerReplica": 3}}}
    one = finished("one", **sections_of(rows, even_folder))
    ours = finished("three", **sections_of(rows, even_folder, **three, **small))
    run_folders.assert_close(ours, one)
