import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_folders
import tiny_jobs
import torch
from job_runs import Run
from safetensors.torch import load_file
from tiers import first_in_test
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

STEPS = 6
LAYOUTS: dict[str, dict[str, object]] = {
    "three ranks": {"ranksPerReplica": 3},
    "ranks that share tokens": {"ranksPerReplica": 2, "parallelism": {"sequence": 2}},
    "two copies": {"ranksPerReplica": 2, "parallelism": {"dataShard": 1}},
}
KINDS: dict[str, dict[str, object]] = {
    "dpo": {"type": "dpo"},
    "aot": {"type": "dpo", "dpo": {"lossType": "aot_unpaired", "tailWeight": 0.5}},
    "kto": {"type": "kto"},
    "bco": {"type": "kto", "kto": {"lossType": "bco"}},
    "reward_model": {"type": "reward_model"},
}
WEIGHTED = {
    "lossWeights": {"ipo": 0.2, "sigmoid": 0.8},
    "divergence": "jsd",
    "weightByPolicy": True,
}
IN_LAYOUTS = {**KINDS, "weighted": {"type": "dpo", "dpo": WEIGHTED}}
QUICK = {
    ("aot", "three ranks"),
    ("weighted", "ranks that share tokens"),
    ("kto", "three ranks"),
    ("reward_model", "three ranks"),
}
"""Of these, what `make test` takes; `make test-long` has the others."""


def pair(number: int) -> dict[str, object]:
    """The better answer says the number, the other letters."""
    asked = [{"role": "user", "content": f"{number % 7}+{number % 5}"}]
    return {
        "chosen": [*asked, {"role": "assistant", "content": f"={number % 9}"}],
        "rejected": [*asked, {"role": "assistant", "content": "abc"[: 1 + number % 3]}],
    }


def labelled(number: int) -> dict[str, object]:
    is_good = number % 3 > 0
    *prompt, answer = pair(number)["chosen" if is_good else "rejected"]
    return {"prompt": prompt, "completion": [answer], "label": is_good}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for name, numbers in (("train", range(40)), ("held-out", range(40, 53))):
        for row in (pair, labelled):
            lines = (json.dumps(row(number)) + "\n" for number in numbers)
            (folder / f"{row.__name__}-{name}.jsonl").write_text("".join(lines))
    return folder


def sections_of(pairs: Path, kind: str, **changes: object) -> dict[str, Any]:
    algorithm = IN_LAYOUTS[kind]
    row = labelled if algorithm["type"] == "kto" else pair
    return {
        "data": {
            "train": [{"path": str(pairs / f"{row.__name__}-train.jsonl")}],
            "validation": [{"path": str(pairs / f"{row.__name__}-held-out.jsonl")}],
            "maxPromptTokens": 64,
            "maxResponseTokens": 64,
        },
        "algorithm": {**algorithm, "promptsPerStep": 8, "miniBatchPrompts": 4},
        "optimizer": {"learningRate": 5e-3},
        "rollout": {},
        "rewards": [],
        "steps": {"total": STEPS, "validateEvery": 3, "validateFirst": True},
        "checkpoint": {"every": 2},
        **changes,
    }


@pytest.fixture(scope="module", params=first_in_test(KINDS.keys(), "dpo", "reward_model"))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(kind: str, pairs: Path, alone: Callable[..., Path]) -> Path:
    return alone(**sections_of(pairs, kind))


def test_answers_are_learnt_and_only_what_is_needed_runs(kind: str, whole: Path) -> None:
    records = run_folders.metrics(whole)
    assert [record["step"] for record in records] == list(range(STEPS + 1))
    assert run_folders.unnamed(records) == set()
    held_out = [record for record in records if "val/loss" in record]
    # Policy and reference are one at first, and so are all rewards of a head of zeros.
    least = 0.5 if kind == "kto" else math.log(2)
    assert held_out[0]["val/loss"] == pytest.approx(least, rel=1e-6)
    last = records[-1]
    if kind in {"kto", "bco"}:
        assert held_out[-1]["val/loss"] < 0.8 * least
        assert held_out[-1]["val/rewards/chosen"] > 0.5 + held_out[-1]["val/rewards/rejected"]
    else:
        assert held_out[-1]["val/loss"] < 0.5 * least
        assert held_out[0]["val/rewards/accuracies"] == 0
        assert held_out[-1]["val/rewards/accuracies"] == 1
        margin = last["train/rewards/chosen"] - last["train/rewards/rejected"]
        assert last["train/rewards/margins"] == pytest.approx(margin, rel=1e-4)
    logs = {path.stem for path in (whole / "logs").glob("*.log")}
    assert logs == {"tiny-controller-0", "tiny-actor-rollout-0"}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kto"], indirect=True)
def test_held_out_answers_stand_beside_the_one_before(kind, whole, pairs, tiny_folder):
    """What is told of them is what transformers says, 8 rows at a time."""
    tokenizer = AutoTokenizer.from_pretrained(whole / "export")
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(folder).eval()
        for folder in (whole / "export", tiny_folder / "model")
    )

    def ratio(row: dict[str, Any], other: dict[str, Any]) -> float:
        prompt = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=False
        )
        text = other["completion"][0]["content"] + "<|im_end|>"
        answer = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = []
        for model in (policy, reference):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            said = logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])
            found.append(said.sum().item())
        return found[0] - found[1]

    lines = (pairs / "labelled-held-out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    losses, points = [], []
    for batch in (range(8), range(8, 13)):
        mean = sum(ratio(rows[n], rows[n - 1]) for n in batch) / len(batch)
        points += [max(0.0, mean)] * len(batch)
    for row, point in zip(rows, points, strict=True):
        gain = 0.1 * (ratio(row, row) - point) * (1 if row["label"] else -1)
        losses.append(1 - 1 / (1 + math.exp(-gain)))
    last = run_folders.metrics(whole)[-1]
    assert last["val/kl"] == pytest.approx(sum(points) / 13, rel=1e-4)
    assert last["val/loss"] == pytest.approx(sum(losses) / 13, rel=1e-4)


def test_without_a_reference(pairs: Path, alone: Callable[..., Path]) -> None:
    """SimPO learns them from the policy alone, which the rewards are of then."""
    sections = sections_of(pairs, "dpo")
    sections["algorithm"]["dpo"] = {"lossType": "simpo", "beta": 2.0, "targetMargin": 1.0}
    records = run_folders.metrics(alone(**sections))
    held_out = [record for record in records if "val/loss" in record]
    assert held_out[0]["val/rewards/chosen"] < -2.0
    assert held_out[-1]["val/loss"] < 0.5 * held_out[0]["val/loss"]
    assert not any(name.startswith("timing_s/ref") for name in records[-1])


def result(output: Path) -> dict[str, object]:
    weights = (output / "export" / "model.safetensors").read_bytes()
    return {"metrics": run_folders.without_clock(output), "weights": weights}


@pytest.mark.parametrize(
    "kind", first_in_test(["dpo", "bco", "reward_model", "aot", "kto"]), indirect=True
)
def test_a_killed_job_ends_as_an_undisturbed_one(kind, whole, run_through, tiny_job, pairs, output):
    """BCO's mean goes from batch to batch; what else compares answers keeps nothing."""
    points = (
        "rpc.demonstrate.answer.before@2=kill",
        "rpc.update.answer.after@5=kill",
        "controller.step.computed@3=kill",
        "rpc.measure_loss.answer.before@2=kill",
    )
    run_through(tiny_job(**sections_of(pairs, kind)), output, *points)
    assert result(output) == result(whole)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=[] if (kind, layout) in QUICK else [pytest.mark.long])
        for kind in IN_LAYOUTS
        for layout in LAYOUTS
    ],
    indirect=["kind"],
)
def test_layouts_and_micro_batches_change_only_rounding(kind, layout, finished, pairs):
    """13 held-out pairs in batches of 8: the second has fewer than three ranks take evenly.

    Every step at this learning rate multiplies what rounding has changed: two are enough to tell
    it from a fault of the layout, on any processor.
    """
    changes = {"steps": {"total": 2, "validateEvery": 2, "validateFirst": True}}
    one = finished("one", **sections_of(pairs, kind, **changes))
    changes["roles"] = {"actorRollout": LAYOUTS[layout]}
    changes["training"] = {"autocast": "none", "microBatchTokens": 40}
    other = finished("other", **sections_of(pairs, kind, **changes))
    steps = map(run_folders.without_layout, (other, one))
    for here, there in zip(*steps, strict=True):
        # Rewards of both signs have a mean that is small beside them.
        assert here == pytest.approx(there, rel=1e-4, abs=1e-4)


DRAWN = {
    "algorithm": {
        "type": "online_dpo",
        "promptsPerStep": 4,
        "samplesPerPrompt": 4,
        "miniBatchPrompts": 2,
        "onlineDpo": {"tailWeight": 0.5, "weightByPolicy": True},
        "kl": {"referenceRefresh": {"everySteps": 2}},
    },
    "steps": {"total": 4, "validateEvery": 4},
}


def test_pairs_that_are_drawn_survive_kills(alone, run_through, replay, tiny_job, even_folder):
    calm = alone(even_folder, **DRAWN)
    first, *_, last = [one for one in run_folders.metrics(calm) if "actor/loss" in one]
    assert run_folders.unnamed([last]) == set()
    assert first["actor/rewards/margins"] != 0.0  # of the second update
    assert 0.0 < last["actor/loss"] < 2.0
    job, killed = (
        tiny_jobs.write_manifest(calm.parent, even_folder, **DRAWN),
        calm.parent / "killed",
    )
    points = ("rpc.update.answer.before@4=kill", "rpc.generate.answer.before@3=kill")
    run_through(job, killed, *points, "controller.step.computed@3=kill")
    assert run_folders.result(killed) == run_folders.result(calm)
    replay(job, killed)


@pytest.mark.long
def test_ranks_change_only_the_rounding_of_drawn_pairs(alone, even_folder):
    """Two of them have a prompt of a mini-batch each, maybe one without a pair."""
    one = alone(even_folder, **DRAWN)
    two = alone(even_folder, **DRAWN, roles={"actorRollout": {"ranksPerReplica": 2}})
    for here, there in zip(*map(run_folders.without_layout, (two, one)), strict=True):
        assert here == pytest.approx(there, rel=1e-3, abs=1e-4)


@pytest.mark.long
def test_a_reward_model_of_adapters_is_a_model_with_them_merged_and_its_head(
    run_through: Callable[..., Run], tiny_folder: Path, pairs: Path, tiny_job, finished, output
) -> None:
    """Killed too; its adapters alone are those of PEFT's classifier of texts."""
    lora = {"rank": 4, "alpha": 8, "targetModules": ["q_proj", "down_proj"]}
    model = {"path": str(tiny_folder / "model"), "lora": lora}
    optimizer = {"learningRate": 3e-2}
    sections = sections_of(pairs, "reward_model", model=model, optimizer=optimizer)
    roles = {"actorRollout": {"ranksPerReplica": 2}}
    whole = finished("whole", **sections, roles=roles)
    held_out = [one for one in run_folders.metrics(whole) if "val/loss" in one]
    assert held_out[0]["val/loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert held_out[-1]["val/loss"] < 0.5 * math.log(2)

    points = ("rpc.update.answer.before@2=kill", "rpc.measure_loss.answer.before@2=kill")
    run_through(tiny_job(**sections, roles=roles), output, *points)
    assert result(output) == result(whole)

    before = load_file(tiny_folder / "model" / "model.safetensors")
    after = load_file(whole / "export" / "model.safetensors")
    apart = load_file(whole / "export" / "adapter" / "adapter_model.safetensors")
    assert torch.equal(apart.pop("base_model.model.score.weight"), after.pop("score.weight"))
    expected = {name: before[name] for name in after}
    for name in filter(re.compile(r"\.lora_A\.").search, apart):
        weight = name.removeprefix("base_model.model.").replace(".lora_A", "")
        expected[weight] = before[weight] + 2.0 * apart[name.replace("_A", "_B")] @ apart[name]
    for name, weight in after.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-6)
    config = json.loads((whole / "export" / "adapter" / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", ["score"])

    again, alone = output.with_name("again"), output.with_name("alone")
    run_folders.export(whole, again)
    run_folders.export(whole, alone, "--adapters")
    for folder, of_export in ((again, whole / "export"), (alone, whole / "export" / "adapter")):
        for path in folder.rglob("*.*"):
            assert path.read_bytes() == (of_export / path.relative_to(folder)).read_bytes(), path


def test_a_reward_model_scores_for_ppo_as_transformers_does(
    pairs: Path, start: Callable[..., Run], tiny_job, finished, output: Path
) -> None:
    learnt = finished("reward", **sections_of(pairs, "reward_model"))
    model = AutoModelForSequenceClassification.from_pretrained(learnt / "export").eval()
    assert type(model).__name__ == "LlamaForSequenceClassification"
    assert model.config.num_labels == 1
    scores = list[list[float]]()
    tokenizer = AutoTokenizer.from_pretrained(learnt / "export")
    for line in (pairs / "pair-held-out.jsonl").read_text().splitlines():
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
