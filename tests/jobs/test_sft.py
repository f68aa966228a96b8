import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_folders
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS = 6
ROWS = 8
COPIES = {"roles": {"actorRollout": {"ranksPerReplica": 2, "parallelism": {"dataShard": 1}}}}
"""Two ranks, each with all weights."""


def talk(number: int) -> list[dict[str, object]]:
    """A conversation of three turns, of which the second is given."""
    a, b = number % 7, number % 5
    return [
        {"role": "user", "content": f"{a}+{b}"},
        {"role": "assistant", "content": f"={a + b}"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "?", "loss_mask": 0},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": f"={a + b}."},
    ]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name, numbers in (("train", range(40)), ("held-out", range(40, 53))):
        lines = (json.dumps({"messages": talk(number)}) + "\n" for number in numbers)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def sections_of(rows: Path, **changes: object) -> dict[str, Any]:
    return {
        "data": {
            "train": [{"path": str(rows / "train.jsonl")}],
            "validation": [{"path": str(rows / "held-out.jsonl")}],
            "promptKey": "messages",
            "maxPromptTokens": 64,
            "maxResponseTokens": 128,
        },
        "algorithm": {"type": "sft", "promptsPerStep": ROWS, "miniBatchPrompts": 4},
        "optimizer": {"learningRate": 1e-2},
        "rollout": {},
        "rewards": [],
        "steps": {"total": STEPS, "validateEvery": 3, "validateFirst": True},
        "checkpoint": {"every": 2},
        **changes,
    }


def result(output: Path) -> dict[str, object]:
    weights = (output / "export" / "model.safetensors").read_bytes()
    return {"metrics": run_folders.without_clock(output), "weights": weights}


@pytest.fixture(scope="module")
def whole(rows: Path, alone: Callable[..., Path]) -> Path:
    return alone(**sections_of(rows))


def test_the_loss_falls_and_only_what_is_needed_runs(whole: Path) -> None:
    records = run_folders.metrics(whole)
    assert [record["step"] for record in records] == list(range(STEPS + 1))
    assert run_folders.unnamed(records) == set()
    held_out = [record["val/loss"] for record in records if "val/loss" in record]
    assert len(held_out) == 3
    assert held_out[0] > held_out[1] > held_out[2]
    losses = [record["train/loss"] for record in records[1:]]
    assert losses[0] == pytest.approx(held_out[0], rel=0.1)
    assert losses[-1] < 0.7 * losses[0]
    assert all(record["train/grad_norm"] > 0 for record in records[1:])
    assert not any(key.startswith(("actor/", "critic/")) for key in records[-1])
    logs = {path.stem for path in (whole / "logs").glob("*.log")}
    assert logs == {"tiny-controller-0", "tiny-actor-rollout-0"}
    assert not (whole / "rollouts").exists()
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["validation"]["last"] == {"val/loss": held_out[-1]}


def test_the_first_loss_is_that_of_transformers(whole: Path, tiny_folder: Path, rows: Path) -> None:
    """By the template's text of a whole conversation, with labels and Hugging Face's own shift."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder / "model")
    model = AutoModelForCausalLM.from_pretrained(tiny_folder / "model", dtype=torch.float64).eval()
    total, count = 0.0, 0
    for line in (rows / "held-out.jsonl").read_text().splitlines():
        ids, labels = list[int](), list[int]()
        for message in json.loads(line)["messages"]:
            head = f"<|im_start|>{message['role']}\n"
            body = f"{message['content']}<|im_end|>"
            is_trained = message["role"] == "assistant" and message.get("loss_mask", 1)
            for text, learnt in ((head, False), (body, is_trained), ("\n", False)):
                tokens = tokenizer.encode(text, add_special_tokens=False)
                ids += tokens
                labels += tokens if learnt else [-100] * len(tokens)
        shown = torch.tensor([ids]), torch.tensor([labels])
        trained = int((shown[1] != -100).sum())
        with torch.no_grad():
            total += model(input_ids=shown[0], labels=shown[1]).loss.item() * trained
        count += trained
    first = run_folders.metrics(whole)[0]
    assert first["val/loss"] == pytest.approx(total / count, rel=1e-6)


def test_a_killed_job_ends_as_an_undisturbed_one(whole, run_through, tiny_job, rows, output):
    points = (
        "rpc.demonstrate.answer.before@2=kill",
        "rpc.update.answer.after@5=kill",
        "controller.step.computed@3=kill",
        "rpc.measure_loss.answer.before@2=kill",
        "checkpoint.seal.rename.before@2=kill",
    )
    run_through(tiny_job(**sections_of(rows)), output, *points)
    assert result(output) == result(whole)


def test_ranks_and_micro_batches_change_only_rounding(finished: Callable[..., Path], rows: Path):
    """13 held-out rows in batches of 8: the second has fewer rows than three ranks take evenly."""
    one = finished("one", **sections_of(rows))
    three = {"roles": {"actorRollout": {"ranksPerReplica": 3}}}
    small = {"training": {"autocast": "none", "microBatchTokens": 200}}
    run_folders.assert_close(finished("three", **sections_of(rows, **three, **small)), one)
    run_folders.assert_close(finished("copies", **sections_of(rows, **COPIES)), one)


@pytest.mark.long
def test_ranks_that_share_tokens_need_one_row_together(finished: Callable[..., Path], rows: Path):
    lone = {"algorithm": {"type": "sft", "promptsPerStep": 1}, "training": {"autocast": "none"}}
    pods = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}
    two = finished("two", **sections_of(rows, **lone, roles={"actorRollout": pods}))
    run_folders.assert_close(two, finished("one", **sections_of(rows, **lone)))


@pytest.mark.long
def test_grpo_goes_on_from_its_export(whole: Path, start, tiny_job, output: Path):
    saved = load_file(
        whole / "checkpoints" / "latest" / "actorRollout" / "rank-00000" / "model.safetensors"
    )
    model = AutoModelForCausalLM.from_pretrained(whole / "export", dtype=torch.float32)
    weights = dict(model.named_parameters())
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())
    job = tiny_job(
        model={"path": str(whole / "export")}, steps={"total": 1}, checkpoint={}, optimizer={}
    )
    start(job, output).succeed()
    *_, record = run_folders.metrics(output)
    assert record["actor/grad_norm"] > 0
