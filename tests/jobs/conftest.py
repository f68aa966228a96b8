"""Whole jobs on real processes: a tiny model and its data, `ppojob run` as a person starts it.

What a test compares is what a person keeps: `metrics.jsonl` without the clock, the rows, the export.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ruamel.yaml import YAML

CLOCK_KEYS = ("timing", "perf/", "rpc/", "memory")
REWARD = '''
def letters(data_source, solution_str, ground_truth, extra_info):
    """Share of letters: a signal that any sampling model gives."""
    return sum(character.isalpha() for character in solution_str) / max(1, len(solution_str))
'''
MAKE_MODEL = '''
import sys
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = sys.argv[1]
names = ["<|pad|>", "<|im_start|>", "<|im_end|>", "\\n", *map(chr, range(32, 127))]
tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
tokenizer.decoder = decoders.Fuse()
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    eos_token="<|im_end|>",
    pad_token="<|pad|>",
    additional_special_tokens=["<|im_start|>"],
)
fast.chat_template = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
fast.save_pretrained(folder)
torch.manual_seed(0)
# Attention dropout draws random numbers in every update, so that a commit without the random state
# would be noticed. 64 heads of size: vLLM on the CPU wants head sizes that are multiples of 32.
config = LlamaConfig(
    vocab_size=len(names), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
    tie_word_embeddings=True, attention_dropout=0.1,
    bos_token_id=None, eos_token_id=2, pad_token_id=0,
)
LlamaForCausalLM(config).save_pretrained(folder)
'''


@dataclass(frozen=True)
class TinyJob:
    """A job's manifest and where it was made."""

    folder: Path
    manifest: Path


@dataclass
class Run:
    """One call of `ppojob run`.

    Attributes:
        process: the runner.
        output: its run folder.
    """

    process: subprocess.Popen[str]
    output: Path
    lines: list[str] = field(default_factory=list)

    def wait(self, seconds: float = 300.0) -> int:
        """Wait for the end; answers the exit status. What it printed is in `lines`."""
        try:
            printed, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            printed, _ = self.process.communicate()
            pytest.fail(f"no end within {seconds} s:\n{printed}\n{self.logs()}")
        self.lines += printed.splitlines()
        return self.process.returncode

    def logs(self) -> str:
        """The last lines of all pods' logs."""
        return "\n".join(
            f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            for log in sorted((self.output / "logs").glob("*.log"))
        )

    def wait_for_step(self, step: int, seconds: float = 180.0) -> None:
        """Wait until the metrics of a step are there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if any(record["step"] >= step for record in metrics(self.output)):
                return
            if self.process.poll() is not None:
                pytest.fail(f"ended before step {step}:\n{self.logs()}")
            time.sleep(0.05)
        pytest.fail(f"step {step} was never done:\n{self.logs()}")


def metrics(output: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl that are whole."""
    path = output / "metrics.jsonl"
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def without_clock(output: Path) -> list[dict[str, float]]:
    """The metrics that two runs of one seed must share, key for key and bit for bit."""
    return [
        {k: v for k, v in record.items() if k != "time" and not k.startswith(CLOCK_KEYS)}
        for record in metrics(output)
    ]


def result(output: Path) -> dict[str, object]:
    """All that must be equal between a disturbed run and one that was not."""
    rows = sorted(output.glob("rollouts/*/*.parquet")) + sorted(output.glob("validation/*/*.parquet"))
    files = [output / "export" / "model.safetensors", *rows]
    return {
        "metrics": without_clock(output),
        **{
            str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    }


def processes_of(output: Path) -> dict[int, str]:
    """Live processes of a run, by the run folder in their environment: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(output.absolute()).encode() in environment and state != "Z":
            found[int(entry.name)] = command
    return found


def wait_until_gone(output: Path, seconds: float = 15.0) -> None:
    """Fail if a process of the run outlives it."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(output)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"left running: {left}"


def rank_pids(output: Path, role: str) -> dict[str, int]:
    """Process ids of a role's pod by what they are: supervisor, rank, controller, child."""
    found = {}
    for pid, command in processes_of(output).items():
        # Reward children see no variable of ours but the scratch folder of their pod.
        environment = (Path("/proc") / str(pid) / "environ").read_bytes()
        if f".pods/scratch/tiny-{role}-0".encode() not in environment:
            continue
        kind = next((k for k in ("supervise", "controller", "rank") if f" {k} " in command), "child")
        found[kind] = pid
    return found


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
        "steps": {"total": 6, "validateEvery": 3},
        "checkpoint": {"every": 2},
        "timeouts": {"livenessSeconds": 10},
    }
    return {
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PPOJob",
        "metadata": {"name": "tiny"},
        "spec": {**spec, **changes},
    }


def spoil(commit: Path, output: Path, forgotten: str | None) -> None:
    """Make a commit that leaves something out, whole in every other way.

    The named file is replaced by that of the first commit of a run with another history, here: by
    its own content with all numbers zeroed; None moves the data cursor back to the beginning.
    """
    from safetensors.torch import load_file, save_file

    from ppojob_trainer.checkpoint import manifest
    from ppojob_trainer.checkpoint.files import FileEntry, sha256_of

    path = commit / "manifest.json"
    found = manifest.decode(path.read_bytes(), path.name)
    if forgotten is None:
        import msgspec

        data = msgspec.structs.replace(found.progress.data, epoch=0, cursor=0)
        progress = msgspec.structs.replace(found.progress, data=data)
        path.write_bytes(manifest.encode(msgspec.structs.replace(found, progress=progress)))
        return
    import msgspec
    import torch

    files = []
    for entry in found.files:
        if not entry.path.endswith(forgotten):
            files.append(entry)
            continue
        shard = commit / entry.path
        if forgotten.startswith("rng"):
            torch.manual_seed(12345)
            tensors = {"torch": torch.get_rng_state()}
        else:
            tensors = {
                name: tensor if tensor.ndim == 0 else torch.zeros_like(tensor)
                for name, tensor in load_file(shard).items()
            }
        save_file(tensors, shard)
        size_bytes, sha256 = sha256_of(shard)
        files.append(
            FileEntry(
                path=entry.path, size_bytes=size_bytes, sha256=sha256,
                role=entry.role, rank=entry.rank,
            )
        )
    path.write_bytes(manifest.encode(msgspec.structs.replace(found, files=tuple(files))))


class Jobs:
    """The functions above, for tests: importlib mode knows no import of a conftest."""

    metrics = staticmethod(metrics)
    without_clock = staticmethod(without_clock)
    result = staticmethod(result)
    processes_of = staticmethod(processes_of)
    wait_until_gone = staticmethod(wait_until_gone)
    rank_pids = staticmethod(rank_pids)
    spoil = staticmethod(spoil)


@pytest.fixture(scope="session")
def jobs() -> type[Jobs]:
    """What tests read from run folders and process tables."""
    return Jobs


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, its tokenizer, data and a reward function."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, "-c", MAKE_MODEL, str(folder / "model")], check=True)
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
    return folder


@pytest.fixture(scope="session")
def make_tiny_manifest(tiny_folder: Path) -> Callable[..., Path]:
    """Writes the manifest of a tiny job into a folder."""

    def make(folder: Path, **changes: object) -> Path:
        manifest = folder / "job.yaml"
        YAML(typ="safe").dump(make_manifest(tiny_folder, **changes), manifest)
        return manifest

    return make


@pytest.fixture
def tiny_job(
    tiny_folder: Path, tmp_path: Path, make_tiny_manifest: Callable[..., Path]
) -> Callable[..., TinyJob]:
    """Writes manifests of tiny jobs."""

    def make(**changes: object) -> TinyJob:
        return TinyJob(tiny_folder, make_tiny_manifest(tmp_path, **changes))

    return make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts `ppojob run`; whatever still runs at the end of the test is killed."""
    runs: list[Run] = []

    def run(job: TinyJob, output: Path, **environment: str) -> Run:
        process = subprocess.Popen(
            [sys.executable, "-m", "ppojob_cli", "run", str(job.manifest), "--plain"]
            + ["--output", str(output)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        runs.append(Run(process, output))
        return runs[-1]

    yield run
    for started in runs:
        if started.process.poll() is None:
            started.process.kill()
            started.process.communicate()
        if started.process.stdout is not None:
            started.process.stdout.close()
        for pid in processes_of(started.output):
            os.kill(pid, signal.SIGKILL)
