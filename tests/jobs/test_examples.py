"""Every example is run, as its comment says, on the real model, with a short job made of it."""

import subprocess
import sys
from pathlib import Path

import pytest
import run_folders
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    "spec.steps.total=1",
    "spec.steps.validateEvery=null",
    "spec.checkpoint.every=null",
    "spec.algorithm.promptsPerStep=2",
    "spec.algorithm.samplesPerPrompt=4",
    "spec.data.maxValidationRows=4",
    "spec.roles.actorRollout.threadsPerRank=1",
)

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]


def ppojob(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ppojob_cli", *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_addition_grpo(tmp_path: Path):
    ppojob(tmp_path, "model", "smollm2", "--output", "models/smollm2-135m")
    ppojob(tmp_path, "data", "addition", "--output", "data/addition")
    settings = [part for setting in SHORT for part in ("--set", setting)]
    example = str(ROOT / "examples" / "addition-grpo.yaml")
    ppojob(tmp_path, "run", example, "--output", "run", "--plain", *settings)
    output = tmp_path / "run"
    first, last = run_folders.metrics(output)
    assert "val-core/ppojob/addition/acc/mean@1" in first
    assert "val-core/ppojob/addition/acc/mean@1" in last
    assert list(output.glob("tensorboard/events.*"))
    export_is_the_committed_model(output)
    run_folders.wait_until_gone(output)


def export_is_the_committed_model(output: Path) -> None:
    """transformers loads the export as it is, with the weights of the last commit, bit for bit."""
    (shard,) = (output / "checkpoints" / "latest").glob("*/rank-00000/model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(output / "export", dtype=torch.float32)
    weights = dict(model.named_parameters())
    committed = load_file(shard)
    assert committed.keys() == weights.keys()
    for name, tensor in committed.items():
        assert torch.equal(weights[name], tensor), name
    tokenizer = AutoTokenizer.from_pretrained(output / "export")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1 + 2 + 3"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\n1 + 2 + 3<|im_end|>\n<|im_start|>assistant\n"
