"""Models that are no critic of a policy, by `ppojob run`: exact lines, nothing started."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from refused_jobs import RefusedJob, edit
from safetensors.numpy import load_file, save_file

Spoil = Callable[[Path], object]


def config(**changes: object) -> Spoil:
    return lambda critic: edit(critic / "config.json", changes)


def shorter_embedding(critic: Path) -> None:
    path = critic / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:50].copy()
    save_file(weights, path)
    config(vocab_size=50)(critic)


def wrong_head(critic: Path) -> None:
    path = critic / "model.safetensors"
    save_file({**load_file(path), "score.weight": np.zeros((2, 64), np.float32)}, path)


CASES: dict[str, tuple[Spoil, str]] = {
    "no such folder": (
        shutil.rmtree,
        'spec.critic.path: got "critic": there is no such folder; a folder on this machine in '
        "Hugging Face form (config.json, *.safetensors, tokenizer.json); ppojob model makes one of "
        "a hub id",
    ),
    "another kind": (
        config(architectures=["LlamaForQuestionAnswering"]),
        'critic/config.json:architectures: got ["LlamaForQuestionAnswering"]: no critic can be '
        "made of it; a language model, or a classifier of tokens or texts with one label",
    ),
    "several labels": (
        config(architectures=["LlamaForTokenClassification"], id2label={"0": "a", "1": "b"}),
        "critic/config.json:id2label: got 2 labels: a score is one number; a language model, or a "
        "classifier of tokens or texts with one label",
    ),
    "a head of two numbers": (
        wrong_head,
        "critic/model.safetensors:score.weight: got shape [2, 64]: config.json makes it [1, 64]; "
        "the weights that belong to this config.json",
    ),
    "another vocabulary": (
        shorter_embedding,
        "spec.critic.path: got an embedding of 50 rows: it reads the policy's token ids, which go "
        "up to 98; a model with the policy's tokenizer",
    ),
    "too short": (
        config(max_position_embeddings=71),
        "spec.critic.path: got a model made for 71 tokens: spec.rollout.maxModelTokens is 72; "
        "a model made for as many, or shorter rows",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_line_says_what_is_wrong(name: str, tmp_path: Path, tiny_folder: Path) -> None:
    wrong = RefusedJob(tmp_path, tiny_folder)
    critic = wrong.files / "critic"
    shutil.copytree(wrong.model, critic)
    wrong.set("spec.algorithm.type", "ppo")
    wrong.set("spec.critic", {"path": str(critic)})
    spoil, line = CASES[name]
    spoil(critic)
    assert wrong.refused() == [line]
