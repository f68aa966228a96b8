"""Tiny jobs: a model, its tokenizer, data and a reward function, made in a second."""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import run_server
from ruamel.yaml import YAML

from ppojob_api.run_config import RunConfig, resolve
from ppojob_cli.job_file import load_job

REWARD = '''
def letters(data_source, solution_str, ground_truth, extra_info):
    """Share of letters: a signal that any sampling model gives."""
    return sum(character.isalpha() for character in solution_str) / max(1, len(solution_str))
'''
PPO = {
    "algorithm": {
        "type": "ppo",
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "miniBatchPrompts": 2,
        "epochs": 2,
        "shuffleMiniBatches": True,
        "kl": {"in": "reward", "coefficient": 0.01},
    },
    "critic": {"optimizer": {"learningRate": 1e-3}, "warmupSteps": 1},
}
"""Sections of a job with a critic and a reference."""
OWN_PODS = {"reference": {"colocateWith": "none"}, "critic": {"colocateWith": "none"}}
"""`spec.roles` of such a job in which every role has pods of its own."""
WITH_BYTES = {
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
}
"""Changes of a tiny tokenizer.json: it says which bytes a token has, and decodes the same."""
_AT_FIRST = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
MODELS = Path(__file__).with_name("tiny_models.py")


def make_manifest(folder: Path, **changes: object) -> dict[str, object]:
    """The manifest of a tiny job; `changes` replace whole sections of the spec."""
    spec: dict[str, object] = {
        "model": {"path": str(folder / "model")},
        "data": {
            "train": [{"path": str(folder / "train.jsonl")}],
            "validation": [{"path": str(folder / "validation.jsonl")}],
            "maxPromptTokens": 64,
            "maxResponseTokens": 8,
        },
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "shuffleMiniBatches": True,
        },
        "optimizer": {"learningRate": 1e-3},
        "training": {"autocast": "none"},
        "rollout": {"engine": "huggingface", "dtype": "float32"},
        "rewards": [{"function": "letters", "source": {"path": str(folder / "reward.py")}}],
        "steps": {"total": 12, "validateEvery": 6},
        "checkpoint": {"every": 2},
        "timeouts": {"livenessSeconds": 30},
        "recovery": {"restartsWithoutProgress": 30},  # more than a test has kills, but for some
    }
    return {
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PPOJob",
        "metadata": {"name": "tiny"},
        "spec": {**spec, **changes},
    }


def write_manifest(folder: Path, tiny_folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    manifest = folder / "job.yaml"
    YAML(typ="safe").dump(make_manifest(tiny_folder, **changes), manifest)
    return manifest


def config_of(folder: Path, **changes: object) -> RunConfig:
    """The configuration of a tiny job in its folder."""
    return resolve(load_job(write_manifest(folder, folder, **changes)))


def make_tiny_folder(folder: Path, dropout: float = 0.1, model: str = "policy") -> None:
    _make_model(model, folder / "model", dropout)
    draw = random.Random(0)
    for name, rows in (("train", 40), ("validation", 8)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for index in range(rows):
                a, b = draw.randint(1, 9), draw.randint(1, 9)
                row = {
                    "prompt": [{"role": "user", "content": f"{a}+{b}"}],
                    "data_source": "tiny",
                    "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                    "extra_info": {"index": index},
                }
                file.write(json.dumps(row) + "\n")
    (folder / "reward.py").write_text(REWARD)


def _make_model(*what: object) -> None:
    """Make a model here where torch is loaded already, which takes long, and else elsewhere."""
    arguments = list(map(str, what))
    if "torch" not in sys.modules:
        subprocess.run([sys.executable, MODELS, *arguments], check=True)
        return
    import tiny_models
    import torch

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        tiny_models.make(*arguments)


def make_classifier(policy: Path, folder: Path) -> Path:
    """Make a reward model that reads what a policy writes; answers its folder."""
    _make_model("classifier", policy, folder)
    return folder


def classifier_of(folder: Path) -> Path:
    """The reward model of a tiny folder, which is made where it is not there yet."""
    found = folder / "classifier"
    return found if found.exists() else make_classifier(folder / "model", found)


def make_teacher(policy: Path, folder: Path) -> Path:
    """Make a larger model that knows better what a policy should write; answers its folder."""
    _make_model("teacher", policy, folder)
    return folder


def environment(**changes: str) -> dict[str, str]:
    """What a run is started with: variables of ours as they are, all others as they were at first.

    A library that a test loads may set some (Inductor: TORCHINDUCTOR_CACHE_DIR), and pytest sets
    the names of the test and of its worker. A job in another environment than the first one has
    servers of its own.
    """
    ours = {name: value for name, value in os.environ.items() if name.startswith("PPOJOB_")}
    return {**_AT_FIRST, **ours, **changes}


def reward_at(path: Path, source: str, **settings: object) -> list[dict[str, object]]:
    """Write a reward function, which has the name of its file; answers `spec.rewards` of it."""
    path.write_text(source)
    return [{"function": path.stem, "source": {"path": str(path)}, **settings}]


def ppojob(folder: Path, *arguments: str | Path, status: int = 0, **changes: str) -> str:
    """Run a command of `ppojob` in a folder to its end, which is good; answers what it says."""
    with tempfile.TemporaryFile() as said, contextlib.chdir(folder):
        found = run_server.run(arguments, environment(**changes), said).wait()
        said.seek(0)
        text = said.read().decode()
    assert found == status, text
    return text


def run_alone(manifest: Path) -> Path:
    """Run a job that nobody disturbs; answers its run folder, which is made beside the manifest."""
    output = manifest.parent / "run"
    ppojob(manifest.parent, "run", manifest, "--output", output)
    return output
