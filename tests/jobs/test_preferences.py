"""Jobs of pairs: DPO and a reward model learn, survive, and the reward model scores for PPO."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_folders
import tiny_jobs
import torch
from job_runs import Run
from transformers import AutoModelForSequenceClassification, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 6
LAYOUTS: dict[str, dict[str, object]] = {
    "three ranks": {"ranksPerReplica": 3},
    "ranks that share tokens": {"ranksPerReplica": 2, "parallelism": {"sequence": 2}},
    "two copies": {"ranksPerReplica": 2, "parallelism": {"dataShard": 1}},
}


def pair(number: int) -> dict[str, object]:
    """The better answer says the number, the other letters."""
    asked = [{"role": "user", "content": f"{number % 7}+{number % 5}"}]
    return {
        "chosen": [*asked, {"role": "assistant", "content": f"={number % 9}"}],
        "rejected": [*asked, {"role": "assistant", "content": "abc"[: 1 + number % 3]}],
    }


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for name, numbers in (("train", range(40)), ("held-out", range(40, 53))):
        lines = (json.dumps(pair(number)) + "\n" for number in numbers)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def sections_of(pairs: Path, kind: str, **changes: object) -> dict[str, Any]:
    """Sections of a job that learns the pairs."""
    return {
        "data": {
            "train": [{"path": str(pairs / "train.jsonl")}],
            "validation": [{"path": str(pairs / "held-out.jsonl")}],
            "maxPromptTokens": 64,
            "maxResponseTokens": 64,
        },
        "algorithm": {"type": kind, "promptsPerStep": 8, "miniBatchPrompts": 4},
        "optimizer": {"learningRate": 5e-3},
        "rollout": {},
        "rewards": [],
        "steps": {"total": STEPS, "validateEvery": 3, "validateFirst": True},
        "checkpoint": {"every": 2},
        "recovery": {"restartsWithoutProgress": 100},
        **changes,
    }


@pytest.fixture(scope="module", params=["dpo", "reward_model"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(
    kind: str,
    tiny_folder: Path,
    pairs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    fork_server: None,
) -> Path:
    """The run folder of such a job that nobody disturbs."""
    sections = sections_of(pairs, kind)
    folder = tmp_path_factory.mktemp("whole")
    return tiny_jobs.run_alone(tiny_jobs.write_manifest(folder, tiny_folder, **sections))


def test_pairs_are_learnt_and_only_what_is_needed_runs(whole: Path) -> None:
    records = run_folders.metrics(whole)
    assert [record["step"] for record in records] == list(range(STEPS + 1))
    assert run_folders.unnamed(records) == set()
    held_out = [record for record in records if "val/loss" in record]
    # Policy and reference are one at first, and so are all rewards of a head of zeros.
    assert held_out[0]["val/loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert held_out[0]["val/rewards/accuracies"] == 0
    assert held_out[-1]["val/loss"] < 0.5 * math.log(2)
    assert held_out[-1]["val/rewards/accuracies"] == 1
    last = records[-1]
    margin = last["train/rewards/chosen"] - last["train/rewards/rejected"]
    assert last["train/rewards/margins"] == pytest.approx(margin, rel=1e-4)
    logs = {path.stem for path in (whole / "logs").glob("*.log")}
    assert logs == {"tiny-controller-0", "tiny-actor-rollout-0"}


def result(output: Path) -> dict[str, object]:
    weights = (output / "export" / "model.safetensors").read_bytes()
    return {"metrics": run_folders.without_clock(output), "weights": weights}


def test_a_killed_job_ends_as_an_undisturbed_one(
    kind: str, whole: Path, run_through: Callable[..., Run], tiny_job, pairs: Path, output: Path
) -> None:
    points = (
        "rpc.demonstrate.answer.before@2=kill",
        "rpc.update.answer.after@5=kill",
        "controller.step.computed@3=kill",
        "rpc.measure_loss.answer.before@2=kill",
    )
    run_through(tiny_job(**sections_of(pairs, kind)), output, *points)
    assert result(output) == result(whole)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_micro_batches_change_only_rounding(
    kind: str, layout: str, finished: Callable[..., Path], pairs: Path
) -> None:
    """13 held-out pairs in batches of 8: the second has fewer than three ranks take evenly."""
    one = finished("one", **sections_of(pairs, kind))
    changes = {
        "roles": {"actorRollout": LAYOUTS[layout]},
        "training": {"autocast": "none", "microBatchTokens": 40},
    }
    other = finished("other", **sections_of(pairs, kind, **changes))
    steps = map(run_folders.without_layout, (other, one))
    for here, there in zip(*steps, strict=True):
        # Rewards of both signs have a mean that is small beside them.
        assert here == pytest.approx(there, rel=1e-4, abs=1e-4)


def test_a_reward_model_scores_for_ppo_as_transformers_does(
    tiny_folder: Path, pairs: Path, start: Callable[..., Run], tiny_job, finished, output: Path
) -> None:
    learnt = finished("reward", **sections_of(pairs, "reward_model"))
    model = AutoModelForSequenceClassification.from_pretrained(learnt / "export").eval()
    assert type(model).__name__ == "LlamaForSequenceClassification"
    assert model.config.num_labels == 1
    scores = list[list[float]]()
    tokenizer = AutoTokenizer.from_pretrained(learnt / "export")
    for line in (pairs / "held-out.jsonl").read_text().splitlines():
        texts = (json.loads(line)[key] for key in ("chosen", "rejected"))
        ids = (tokenizer.apply_chat_template(one, return_dict=False) for one in texts)
        with torch.no_grad():
            scores.append([model(torch.tensor([own])).logits.item() for own in ids])
    for name, column in zip(("chosen", "rejected"), zip(*scores, strict=True), strict=True):
        told = run_folders.metrics(learnt)[-1][f"val/rewards/{name}"]
        assert told == pytest.approx(sum(column) / len(column), rel=1e-4)
    ppo = {**tiny_jobs.PPO, "rewards": [], "rewardModel": {"path": str(learnt / "export")}}
    start(tiny_job(**ppo, steps={"total": 2}, checkpoint={}), output).succeed()
    *_, record = run_folders.metrics(output)
    assert record["critic/score/max"] > record["critic/score/min"]
